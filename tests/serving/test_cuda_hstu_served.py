"""HSTU rankers with target `cuda`, on CPU tensors, behind a real tritonserver: the scores are the torch module's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from build.cuda.engines import build_engines as build_cuda
from clients.rank_wire import PreInference
from clients.ranker import Ranker
from deploy.launcher import _ensembles
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.nn.hstu_checkpoint import load_hstu, load_hstu_next
from genrec.settings import Settings
from genrec.steps import load as load_step
from tests.oracles.hstu_asked import Asked, logits_of
from tests.oracles.next_asked import next_scores
from tests.serving.processes import until
from tests.serving.ranked import check, check_behind_a_retrieval, ranking_server

RATINGS, TIMES, NOW = [1, 5, 2, 4, 3, 5, 1], [10, 10, 500, 900, 5000, 10**6, 10**7], 10**7 + 60


def wanted(artifact: Path, kind: str) -> tuple[dict[str, Any], list[float]]:
    """What is known of events, and torch's scores of items 40 to 59 behind items 0 to 6."""
    known: dict[str, Any] = {"times": TIMES, "now": NOW}
    if kind == "hstu-next":
        return known, next_scores(load_hstu_next(artifact / "model"), range(7), TIMES, NOW)[40:60].tolist()
    asked = Asked(range(7), RATINGS, TIMES, NOW, [1, 4])
    scores = logits_of(load_hstu(artifact / "model"), asked, range(40, 60))[:, 0]
    return {**known, "ratings": RATINGS, "features": [1, 4]}, scores.tolist()


@pytest.mark.parametrize(
    ("kind", "prefix"), [pytest.param("hstu", 9, marks=pytest.mark.long), ("hstu-next", 6)]
)
def test_scores_are_torch_s_and_users_are_kept_and_computed_ahead(
    kind: str, prefix: int, tiny_hstu: Path, tiny_hstu_next: Path, tmp_path: Path
) -> None:
    artifact = shutil.copytree(tiny_hstu if kind == "hstu" else tiny_hstu_next, tmp_path / "artifact")
    build_cuda(artifact, "f32", "cpu")
    ids = Catalogue.load(artifact / "catalogue.parquet").item_ids
    known, scores = wanted(artifact, kind)
    asked = {"history": ids[:7].tolist(), "candidates": ids[40:60].tolist(), "top_k": 20, **known}
    want = dict(zip(asked["candidates"], scores, strict=True))
    with ranking_server(artifact, target="cuda") as server, Ranker(server.grpc_url) as ranker:
        found = [ranker.rank(**asked, user_id=1) for _ in range(2)]
        for each in found:
            check(each, want)
        assert [each.user_reused for each in found] == [0, prefix]
        past = {name: each for name, each in asked.items() if name not in ("candidates", "top_k", "now")}
        until(lambda: ranker.pre_infer(**past, user_id=2) == PreInference("ready", prefix, prefix, 0))
        ahead = ranker.rank(**asked, user_id=2)
        check(ahead, want)
        assert ahead.user_reused == prefix
        check_behind_a_retrieval(server.grpc_url, asked)


def test_a_target_without_one_says_where_it_would_be(tiny_hstu: Path) -> None:
    names = [each.name for each in _ensembles(tiny_hstu, "tensorrt")]
    assert "rank" not in names and "rank" in [each.name for each in _ensembles(tiny_hstu, "cuda")]
    with pytest.raises(InputError, match=r"tensorrt has no HSTU ranker.*openvino, cuda"):
        load_step("score_events", Settings(tiny_hstu, tiny_hstu / "no-arena", 16, "tensorrt"))
