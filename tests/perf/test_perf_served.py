"""The benchmarks against the real server, with few requests: that they count right, not how fast it is."""

from __future__ import annotations

import asyncio
import csv
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.errors import BadRequest, Unreachable
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from ensembles.local import LocalRecommender
from ensembles.recommend_staged import recommend_staged
from genrec.errors import ArtifactError, GenrecError
from genrec.models.config import ModelConfig
from perf.kit import endpoints, traffic, worth
from perf.kit.counters import Triton
from perf.kit.lean import LeanRecommender
from perf.slo import replay, request_stages, sweep
from perf.slo.analyzer import Window

pytestmark = pytest.mark.serving
TOP_K = 5


def target(server: RunningServer) -> endpoints.Endpoint:
    return endpoints.read_server_json(server.run_dir / "server.json")


@pytest.mark.long
def test_sweep_with_the_real_perf_analyzer(
    tiny: Path, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One point of one second; whether it holds is the machine's business. No proxy is asked, which leads nowhere."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    found = sweep.sweep(
        tiny, 1e6, tmp_path / "out", rates=(5, 5, 1), precision=100, window=Window(count=10), confirmations=0,
        cross_check_s=1, histories=20, top_k=TOP_K, server_json=server.run_dir / "server.json",
    )  # fmt: skip
    (point,) = found["points"]
    assert point["rate"] == 5 and point["requests"] >= 10 and 0 < point["p50_ms"] <= point["p99_ms"]
    assert found["confirmed"] is False and found["answered_rate"] is None
    if found["highest_rate"]:
        assert found["reached_end"] is True
        assert found["cross_check"]["requests"] == found["cross_check"]["answered"] == 5
    assert (found["valid_share"], found["distinct_share"], found["enough_share"]) == (1, 1, 1)
    assert found["answers_checked"] == 20 * len(found["points"])
    out = tmp_path / "out"
    assert json.loads((out / "sweep.json").read_text())["points"] == json.loads(json.dumps(found["points"]))
    (row,) = csv.DictReader((out / "sweep.csv").open())
    assert float(row["p99_ms"]) == point["p99_ms"]
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((out / "histories.json").read_text())["data"]) == 20
    assert (out / "generate_v1.rate-5.csv").exists()


def test_replay_counts_answers_and_refusals(tiny: Path, server: RunningServer) -> None:
    sample = traffic.histories(tiny, 10)
    report = replay.run(target(server), sample, traffic.poisson(200, 12), top_k=TOP_K, show=False)
    assert (report.requests, report.answered, report.failed) == (12, 12, 0)
    shed = replay.run(target(server), sample, traffic.bursts(200, 12, 4), deadline_ms=1, show=False)
    assert (shed.requests, shed.answered, shed.shed, shed.failed) == (12, 0, 12, 0)
    assert shed.p99_ms is None and shed.goodput == 0
    assert shed.shed_by == {"deadline_ms": 12}
    broken = replay.run(target(server), sample, traffic.poisson(200, 12), deadline_ms=0, show=False)
    assert broken.failed == 12 and next(iter(broken.problems)).startswith("BadRequest: deadline_ms: is 0")


def test_the_client_for_load_raises_what_the_client_raises(server: RunningServer) -> None:
    async def ask(url: str, ensemble: str, top_k: int) -> list[str]:
        async with LeanRecommender(url, ensemble) as lean:
            return await lean.recommend([], top_k)

    answer = asyncio.run(ask(server.grpc_url, "recommend", TOP_K))
    assert sorted(answer) == ["item_ids", "report", "scores"]
    with pytest.raises(BadRequest, match="top_k"):
        asyncio.run(ask(server.grpc_url, "recommend", 0))
    with pytest.raises(Unreachable, match="nowhere"):
        asyncio.run(ask(server.grpc_url, "nowhere", TOP_K))
    with pytest.raises(Unreachable):
        asyncio.run(ask(f"127.0.0.1:{choose_ports().grpc}", "recommend", TOP_K))


def test_stages_count_every_call_and_every_byte(tiny: Path, server: RunningServer) -> None:
    sample, levels = traffic.histories(tiny, 4), ModelConfig.load(tiny / "model" / "config.json").levels
    triton = Triton(replace(target(server), ensemble=request_stages.ENSEMBLE))
    with LocalRecommender(tiny, beam_width=32, slots=8, decoder="staged") as local:
        one, _ = request_stages.in_turns({32: (triton, local)}, sample, TOP_K, rounds=2)[32]
        sent = request_stages.tensor_bytes(local, sample[0], TOP_K)
    triton.close()
    checked = worth.worth_of(tiny, one.served.answers, TOP_K)
    assert checked == (1, 1, 1, 4)
    extra = {"triton_bytes": sent, "arena_bytes": 1, "least_ms": {}}
    found = request_stages.summarise(32, [one], {**extra, **checked._asdict()})
    calls = {
        "encode_history": 1,
        "prefill": 1,
        "beam_search": levels,
        "decode": levels - 1,
        "validity_lookup": 1,
    }
    for model, per_request in calls.items():  # a probe of the supervisor may have come between
        assert per_request * 4 <= round(4 * found.calls[model]) <= per_request * 8
    assert list(found.local_ms) == [model.name for model in recommend_staged(levels).models]
    assert found.prompt_tokens == 16 * levels
    # history and the flag, item ids and scores are the least; a beam is int64 path, int32 node and parent, score.
    assert sent > sample[0].nbytes + TOP_K * 12 + levels * 32 * 12
    assert abs(found.mean_ms - found.client_ms - sum(found.stages_ms.values()) - sum(found.queue_ms.values())
               - sum(found.copies_ms.values()) - found.ensemble_ms) < 1  # fmt: skip
    assert "beam width 32" in request_stages.table(found)
    assert worth.line(checked) in request_stages.table(found)


def test_triton_and_the_local_runtime_come_first_as_often(tiny: Path, server: RunningServer) -> None:
    came: list[str] = []

    class Kept(list[Any]):
        """A sample that keeps who began to read it."""

        def __iter__(self) -> Iterator[Any]:
            came.append(inspect.stack()[1].function)
            return super().__iter__()

    triton = Triton(replace(target(server), ensemble=request_stages.ENSEMBLE))
    with LocalRecommender(tiny, beam_width=32, slots=8, decoder="staged") as local:
        request_stages.in_turns({32: (triton, local)}, Kept(traffic.histories(tiny, 1)), TOP_K, rounds=4)
    triton.close()
    assert sorted(came[::2]) == ["through_triton"] * 2 + ["without_triton"] * 2


def test_statistics_are_restricted(server: RunningServer) -> None:
    triton = Triton(endpoints.Endpoint(server.grpc_url))
    with pytest.raises(GenrecError, match="no statistics"):
        triton.statistics()
    triton.close()


def test_a_file_that_describes_no_server(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text("{}")
    with pytest.raises(ArtifactError):
        endpoints.read_server_json(tmp_path / "server.json")
