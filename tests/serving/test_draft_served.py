"""`recommend_draft` through a real server: the same promises as `recommend`, and the local runtime's very answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from deploy.launcher import RunningServer, _ensembles, _repository
from ensembles.local import LocalRecommender
from genrec.errors import GenrecError
from tests.conftest import BEAM_WIDTH
from tests.serving.wire import BAD_CHANGES, ask, cases, changed, refusal, tensors

pytestmark = pytest.mark.serving
GRPC, HTTP = tritonclient.grpc, tritonclient.http
DRAFT = "recommend_draft"


def test_grpc_http_and_local_runtime_agree(server: RunningServer, tiny: Path, items: list[int]) -> None:
    with LocalRecommender(tiny, BEAM_WIDTH, decoder="draft") as local:
        here = local.runtime.run(cases(items))
    for arrays, expected in zip(cases(items), here, strict=True):
        assert not isinstance(expected, GenrecError)
        over_grpc = ask(GRPC, server.grpc_url, arrays, model=DRAFT)
        over_http = ask(HTTP, server.http_url, arrays, model=DRAFT)
        for name in ("item_ids", "scores", "report"):
            np.testing.assert_array_equal(over_grpc[name], over_http[name])
            np.testing.assert_array_equal(over_grpc[name], expected[name])


def test_answers_are_known_distinct_and_enough(server: RunningServer, items: list[int]) -> None:
    found = ask(GRPC, server.grpc_url, tensors(items[:6], top_k=30), model=DRAFT)
    assert found["item_ids"].shape == found["scores"].shape == (1, 30)
    assert len(set(found["item_ids"][0])) == 30
    assert set(found["item_ids"][0]) <= set(items)
    assert (np.diff(found["scores"][0]) <= 0).all()


@pytest.mark.parametrize("change", BAD_CHANGES, ids=str)
def test_bad_requests_get_the_errors_of_recommend(
    server: RunningServer, items: list[int], change: dict[str, np.ndarray | None]
) -> None:
    arrays = changed(tensors(items[:2]), change)
    status, message = refusal(server.grpc_url, arrays, DRAFT)
    assert (status, message.replace(DRAFT, "recommend")) == refusal(server.grpc_url, arrays, "recommend")


@pytest.mark.parametrize(
    "states",
    [np.zeros((1, 7), np.float32), *(np.full((1, 128), each, np.float32) for each in (np.nan, np.inf, 1e30))],
    ids=["short", "nan", "infinite", "huge"],
)
def test_inner_models_refuse_what_no_step_gives(server: RunningServer, states: np.ndarray) -> None:
    forged = {
        "states": states,
        "ticket": np.array([[5, 9, 0, 0, 0, 0]], np.int64),
        "excluded": np.array([[-1]], np.int32),
    }
    with pytest.raises(InferenceServerException, match="states") as refused:
        ask(GRPC, server.grpc_url, forged, model="draft_beam")
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_an_artifact_without_a_draft_head_is_served_recommend_alone(tiny: Path, tmp_path: Path) -> None:
    plain = tmp_path / "artifact"
    (plain / "model").mkdir(parents=True)
    (plain / "model" / "config.json").write_text((tiny / "model" / "config.json").read_text())
    _repository(_ensembles(plain, "openvino"), tmp_path / "models")
    names = {path.name for path in (tmp_path / "models").iterdir()}
    both = {"recommend", "encode_history", "generate", "validity_lookup"}
    assert names == both | {"recommend_staged", "prefill", "beam_search", "decode"}
