"""What clients of a running server see: answers, errors, closed doors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from deploy import probe
from deploy.launcher import RunningServer
from deploy.pools import pools_of
from deploy.switch import servers_of
from ensembles.description import Ensemble
from ensembles.local import LocalRuntime
from ensembles.recommend import recommend
from ensembles.recommend_staged import recommend_staged
from genrec.artifact import load_config
from genrec.engine.load import load_layout
from genrec.errors import GenrecError
from genrec.kv.arena import Arena
from genrec.settings import Settings
from tests.conftest import BEAM_WIDTH
from tests.serving.wire import ask, cases, inputs, tensors

pytestmark = pytest.mark.serving
GRPC, HTTP = tritonclient.grpc, tritonclient.http
PROTOCOLS = pytest.mark.parametrize("module", [GRPC, HTTP], ids=["grpc", "http"])


def url(server: RunningServer, module: ModuleType) -> str:
    return server.grpc_url if module is GRPC else server.http_url


def test_deep_probe_answers(server: RunningServer, items: list[int]) -> None:
    for ensemble in ("recommend", "recommend_draft"):
        assert probe.infer(server.http_url, ensemble, items[0], timeout_s=30).alive
        answered = probe.answered(server.metrics_url, timeout_s=5)
        assert answered and answered[ensemble]
    assert not probe.infer(server.http_url, "nothing", items[0], timeout_s=30).alive


def test_a_small_model_has_no_pool(server: RunningServer, tiny: Path) -> None:
    assert servers_of(tiny) and not pools_of(tiny)


@pytest.mark.parametrize("ensemble", [recommend(), recommend_staged(3)], ids=lambda e: e.name)
def test_grpc_http_and_local_runtime_agree(
    server: RunningServer, tiny: Path, tmp_path: Path, items: list[int], ensemble: Ensemble
) -> None:
    settings = Settings(tiny, tmp_path / "arena", BEAM_WIDTH)
    config = load_config(tiny)
    Arena.create(settings.arena, 8, load_layout(settings, config).slot_bytes).close()
    here = LocalRuntime(ensemble, settings).run(cases(items))
    for arrays, expected in zip(cases(items), here, strict=True):
        assert not isinstance(expected, GenrecError)
        over_grpc, over_http = (
            ask(module, url(server, module), arrays, ensemble.name) for module in (GRPC, HTTP)
        )
        for name in ("item_ids", "scores", "report"):
            np.testing.assert_array_equal(over_grpc[name], over_http[name])
            np.testing.assert_array_equal(over_grpc[name], expected[name])


def test_answers_are_known_distinct_and_enough(server: RunningServer, items: list[int]) -> None:
    found = ask(GRPC, server.grpc_url, tensors(items[:6], top_k=30))
    assert found["item_ids"].shape == found["scores"].shape == (1, 30)
    assert len(set(found["item_ids"][0])) == 30
    assert set(found["item_ids"][0]) <= set(items)
    assert (np.diff(found["scores"][0]) <= 0).all()


@PROTOCOLS
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"top_k": np.array([[0]], np.int32)}, "top_k"),
        ({"top_k": np.array([[BEAM_WIDTH + 1]], np.int32)}, "top_k"),
        ({"deadline_ms": np.array([[-1]], np.int32)}, "deadline_ms"),
        ({"top_k": np.array([[1, 2]], np.int32)}, "top_k"),
        ({"history": np.zeros((1, 3), np.int32)}, "history"),
        ({"history": np.zeros((1, 3, 2), np.int64)}, "history"),
        ({"history": np.zeros((2, 3), np.int64), "top_k": np.ones((2, 1), np.int32)}, "rows"),
        ({"history": None}, "history"),
        ({"surprise": np.zeros((1, 1), np.int32)}, "surprise"),
    ],
)
def test_bad_requests_are_refused_by_name(
    server: RunningServer,
    items: list[int],
    module: ModuleType,
    change: dict[str, np.ndarray | None],
    says: str,
) -> None:
    arrays = {n: a for n, a in {**tensors(items[:2]), **change}.items() if a is not None}
    with pytest.raises(InferenceServerException, match=says) as refused:
        ask(module, url(server, module), arrays)
    assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert ask(module, url(server, module), tensors(items[:2]))["item_ids"].shape == (1, 5)


def test_inner_models_refuse_forged_handles(server: RunningServer, items: list[int]) -> None:
    """A client can call any model: a made-up KV handle is an error, never someone else's logits."""
    forged = {
        "kv": np.array([[1, 1, 1, 0]], np.int64),
        "ticket": np.array([[5, 9, 0, 0, 0, 0]], np.int64),
        "excluded": np.array([[-1]], np.int32),
    }
    with pytest.raises(InferenceServerException, match="kv"):
        ask(GRPC, server.grpc_url, forged, model="beam_search")
    assert ask(GRPC, server.grpc_url, tensors(items[:2]))["item_ids"].shape == (1, 5)


@pytest.mark.parametrize("ensemble", ["recommend", "recommend_staged"])
def test_a_burst_is_batched_and_answers_are_not_mixed_up(
    server: RunningServer, items: list[int], ensemble: str
) -> None:
    """Unequal histories share batches (ragged), and everyone gets what they get alone."""
    requests = [tensors(items[n : n + 1 + n % 9]) for n in range(24)]
    alone = [ask(GRPC, server.grpc_url, r, ensemble)["item_ids"] for r in requests]
    with GRPC.InferenceServerClient(server.grpc_url) as client:
        before = executions(client, server, "prefill")
        with ThreadPoolExecutor(24) as pool:
            jobs = [pool.submit(client.infer, ensemble, inputs(GRPC, r)) for r in requests]
            together = [job.result().as_numpy("item_ids") for job in jobs]
        after = executions(client, server, "prefill")
    np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))
    if ensemble == "recommend_staged":  # the other batches by itself (tests/genrec/test_schedule.py)
        assert after["inferences"] - before["inferences"] == 24
        assert after["executions"] - before["executions"] < 24


def executions(
    client: tritonclient.grpc.InferenceServerClient, server: RunningServer, model: str
) -> dict[str, int]:
    answer = client.get_inference_statistics(model, headers=server.grpc_headers).model_stats[0]
    return {"inferences": answer.inference_count, "executions": answer.execution_count}


@PROTOCOLS
def test_the_token_opens_what_people_need_and_nothing_more(server: RunningServer, module: ModuleType) -> None:
    headers = server.grpc_headers if module is GRPC else server.http_headers
    with module.InferenceServerClient(url(server, module)) as client:
        for call in (
            lambda **more: client.get_inference_statistics("prefill", **more),
            lambda **more: client.get_model_config("prefill", **more),
        ):
            with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
                call()
            with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
                call(headers=dict.fromkeys(headers, "wrong"))
            call(headers=headers)
        for controls in (
            lambda **more: client.load_model("prefill", **more),
            lambda **more: client.get_model_repository_index(**more),
            lambda **more: client.get_system_shared_memory_status(**more),
            lambda **more: client.get_trace_settings("prefill", **more),
            lambda **more: client.get_log_settings(**more),
        ):
            for given in ({}, headers):
                with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
                    controls(headers=given)
        assert client.is_server_ready()
