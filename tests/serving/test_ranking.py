"""Rankings by a real tritonserver: the local runtime's answers, whatever the pool holds and whoever dies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from build.openvino.operations import can_be_compiled
from cli import main
from clients.errors import BadRequest
from clients.ranker import Ranker
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from deploy.pools import pools_of
from deploy.tensorrt.reference import compare
from ensembles.local import LocalRecommender
from ensembles.served import served
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.pool.pool import Pool
from genrec.steps.known_users import HISTORIES
from perf.kit import asking, traffic
from perf.kit.endpoints import Endpoint
from perf.slo import capacity, sweep
from perf.slo.analyzer import Window
from tests.deploy.prometheus import scrape, total
from tests.serving.processes import stub_of, until
from tests.serving.ranked import rank_many, with_others
from tests.serving.servers import brief_server, nobodys_traces
from training.data.histories import Histories

WIDTH, TOP_K = 16, 8


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this file alone: pools are found by their artifact."""
    return shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("ranking") / "artifact")


@pytest.fixture(scope="module")
def ranking(artifact: Path) -> Iterator[RunningServer]:
    settings: dict[str, Any] = {"pool_user_mb": 4, "pool_item_mb": 4, "pool_fill": "none"}
    settings["trace_url"] = nobodys_traces()
    with brief_server(
        artifact,
        beam_width=WIDTH,
        ensembles=("rank", "recommend_and_rank", "recommend"),
        probe_every_s=0.5,
        **settings,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def asked(artifact: Path) -> list[tuple[list[int], list[int]]]:
    """Histories and candidates."""
    ids = Catalogue.load(artifact / "catalogue.parquet").item_ids.tolist()
    return [(ids[n : n + 3 + n], ids[50 + n : 90 + 2 * n]) for n in range(6)]


@pytest.fixture(scope="module")
def want(artifact: Path, asked: list[tuple[list[int], list[int]]]) -> list[Any]:
    """What the local runtime answers, with nothing in its pool."""
    with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        return local.rank(asked, TOP_K)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_served_rankings_are_the_local_runtime_s_and_reuse_what_is_there(
    ranking: RunningServer, asked: list[tuple[list[int], list[int]]], want: list[Any], protocol: Any
) -> None:
    url = ranking.grpc_url if protocol == "grpc" else ranking.http_url
    with Ranker(url, protocol) as ranker:
        for user, ((history, candidates), answer) in enumerate(zip(asked, want, strict=True)):
            for _ in range(2):
                found = ranker.rank(history, candidates, TOP_K, user_id=user)
                np.testing.assert_array_equal(found.item_ids, answer["item_ids"][0])
                np.testing.assert_allclose(found.scores, answer["scores"][0], atol=1e-5)
            assert found.user_reused == 3 * len(history) and found.items_reused == 3 * len(candidates)


@pytest.mark.skipif(not can_be_compiled("f32"), reason="rankings share no pass: no g++ or no AVX2")
def test_rankings_of_many_at_once_share_passes_and_are_the_same(
    ranking: RunningServer, asked: list[tuple[list[int], list[int]]], want: list[Any]
) -> None:
    before = with_others(ranking)
    rank_many(ranking.grpc_url, asked, want, 120, TOP_K)
    until(lambda: with_others(ranking) > before)


def test_what_recommend_computed_is_the_ranking_s_prefix(
    ranking: RunningServer, asked: list[tuple[list[int], list[int]]]
) -> None:
    history = asked[3][0]
    with Ranker(ranking.grpc_url) as ranker:
        found = ranker.recommend_and_rank(history, retrieve=12, top_k=5, user_id=1234)
        assert found.user_reused == 3 * len(history) and len(set(found.item_ids.tolist())) == 5
        again = ranker.rank(history, found.item_ids, 5, user_id=1234)
        assert again.user_reused == 3 * len(history)


def test_only_what_may_be_answered_is_found_and_ranked(ranking: RunningServer, items: list[int]) -> None:
    with Ranker(ranking.grpc_url) as ranker:
        found = ranker.recommend_and_rank(items[:4], WIDTH, 9, only=items[:8], exclude=items[2:6])
        assert sorted(found.item_ids.tolist()) == sorted([*items[:2], *items[6:8]])
        assert not len(ranker.recommend_and_rank(items[:4], WIDTH, 9, only=[]).item_ids)


def test_a_known_user_needs_no_history(ranking: RunningServer, artifact: Path, items: list[int]) -> None:
    Histories(np.array([3, 9]), np.array(items[:9]), np.array([0, 4, 9])).save(
        artifact / HISTORIES, ["a", "b"]
    )
    with Ranker(ranking.grpc_url) as ranker, Recommender(ranking.http_url, "http") as recommender:
        for user, history in ((3, items[:4]), (9, items[4:9])):
            for ask in (
                partial(ranker.rank, candidates=items[20:50]),
                partial(ranker.recommend_and_rank, retrieve=WIDTH),
            ):
                found, want = ask(None, top_k=5, user_id=user), ask(history, top_k=5, user_id=user)
                np.testing.assert_array_equal(found.item_ids, want.item_ids)
                np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)
        with pytest.raises(BadRequest, match=r"user_id: is 4, who is not in histories\.parquet"):
            ranker.rank(None, items[20:50], user_id=4)
        with pytest.raises(InputError, match="history: is None, and user_id too"):
            recommender.recommend(None)


@pytest.mark.parametrize("ensemble", ["rank", "recommend_and_rank"])
def test_its_way_is_drawn(
    ranking: RunningServer, asked: list[tuple[list[int], list[int]]], ensemble: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    history, candidates = (",".join(map(str, ids)) for ids in asked[2])
    given = ["trace", str(ranking.run_dir / "server.json"), "--history", history, "--ensemble", ensemble]
    given += ["--candidates", candidates] if ensemble == "rank" else []  # as many as the server finds
    assert main.main([*given, "--top-k", "3"]) == 0
    drawn = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    (chain,) = (each for each in served(3, draft=True, ranker=True) if each.name == ensemble)
    models = [step.model for step in chain.steps]
    assert [name for name in drawn if name in models] == models
    if ensemble != "rank":
        assert main.main([*given, "--retrieve", "17"]) == 2
        said = capsys.readouterr()
        assert "retrieve: is 17 (accepted: 1 to 16" in said.err
        assert "encode_history" in said.out and "score_candidates" not in said.out


@pytest.mark.parametrize("ensemble", ["rank", "recommend_and_rank"])
def test_the_capacity_is_that_of_rankings(
    ranking: RunningServer, artifact: Path, monkeypatch: pytest.MonkeyPatch, ensemble: str
) -> None:
    monkeypatch.setattr(asking, "CANDIDATES", WIDTH)
    monkeypatch.setattr(capacity, "WARM_UP_S", 0.0)
    server = Endpoint(ranking.grpc_url, ranking.grpc_headers, ensemble, artifact)
    rate, taken = capacity.capacity(server, traffic.histories(artifact, 5), 2, 0.5, TOP_K)
    assert rate > 0 and len(taken) == rate * 0.5


@pytest.mark.long
@pytest.mark.parametrize("ensemble", ["rank", "recommend_and_rank"])
def test_a_sweep_asks_for_rankings(
    ranking: RunningServer, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ensemble: str
) -> None:
    monkeypatch.setattr(asking, "CANDIDATES", WIDTH)  # as many as the generator may be asked for
    found = sweep.sweep(
        artifact, 1e6, tmp_path, rates=(5, 5, 1), precision=100, window=Window(count=10), confirmations=0,
        cross_check_s=1, histories=20, top_k=TOP_K, server_json=ranking.run_dir / "server.json",
        ensemble=ensemble,
    )  # fmt: skip
    (point,) = found["points"]
    assert point["requests"] >= 10 and not point["problems"]
    assert found["cross_check"]["failed"] == 0
    assert (found["valid_share"], found["distinct_share"], found["enough_share"]) == (1, 1, 1)


def test_a_wrong_request_is_told_what_is_wrong(ranking: RunningServer, items: list[int]) -> None:
    with Ranker(ranking.grpc_url) as ranker:
        with pytest.raises(BadRequest, match="candidates: names no item of the catalogue"):
            ranker.rank(items[:2], [1, 2])
        with pytest.raises(BadRequest, match=r"retrieve: is 17.*beam width"):
            ranker.recommend_and_rank(items[:2], retrieve=17)


REQUIRED = [
    ("rank", ["top_k", "candidates"], "history"),
    ("rank", ["history", "top_k"], "candidates"),
    ("rank", ["history", "candidates"], "top_k"),
    ("recommend", ["history"], "top_k"),
    ("recommend", ["deadline_ms"], "history"),
    ("recommend_and_rank", ["history", "retrieve"], "top_k"),
    ("recommend_and_rank", ["top_k", "retrieve"], "history"),
]
KINDS = {"history": "INT64", "candidates": "INT64"}


@pytest.mark.parametrize(("ensemble", "given", "missing"), REQUIRED)
def test_what_a_request_lacks_is_named(
    ranking: RunningServer, items: list[int], ensemble: str, given: list[str], missing: str
) -> None:
    """And the server goes on."""
    inputs = []
    for name in given:
        kind = KINDS.get(name, "INT32")
        inputs.append(grpc.InferInput(name, [1, 1], kind))
        value = items[0] if kind == "INT64" else 3
        inputs[-1].set_data_from_numpy(np.array([[value]], np.dtype(kind.lower())))
    with grpc.InferenceServerClient(ranking.grpc_url) as client:
        with pytest.raises(grpc.InferenceServerException, match=f"{missing}: is missing"):
            client.infer(ensemble, inputs)
        assert client.is_server_ready()


def test_without_a_number_to_retrieve_as_many_are_ranked_as_can_be_found(
    ranking: RunningServer, items: list[int]
) -> None:
    inputs = [grpc.InferInput("history", [1, 2], "INT64"), grpc.InferInput("top_k", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(np.array([items[:2]]))
    inputs[1].set_data_from_numpy(np.array([[5]], np.int32))
    with grpc.InferenceServerClient(ranking.grpc_url) as client, Ranker(ranking.grpc_url) as ranker:
        found = client.infer("recommend_and_rank", inputs).as_numpy("item_ids")[0].tolist()
        assert found == ranker.recommend_and_rank(items[:2], WIDTH, 5).item_ids.tolist()
        assert found == ranker.recommend_and_rank(items[:2], top_k=5).item_ids.tolist()


def test_a_user_is_forgotten_and_items_are_computed_ahead(
    ranking: RunningServer, artifact: Path, items: list[int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with Ranker(ranking.grpc_url) as ranker:
        ranker.rank(items[:4], items[8:12], 1, user_id=77)
        assert ranker.rank(items[:4], items[8:12], 1, user_id=77).user_reused == 12
        assert main.main(["pool", "forget", str(artifact), "77"]) == 0
        assert "1 entry of user 77 deleted" in capsys.readouterr().out
        assert ranker.rank(items[:4], items[8:12], 1, user_id=77).user_reused == 0
        assert main.main(["pool", "fill", str(artifact)]) == 0
        assert ranker.rank(items[:4], items[200:240], 1).items_reused == 3 * 40
    (pool,) = pools_of(artifact)
    busy = Pool(pool)._map
    assert busy
    busy.lock()  # as a process that was stopped would hold it
    try:
        with monkeypatch.context() as shorter:
            shorter.setattr("cli.pool.TRIES", 2)
            assert main.main(["pool", "forget", str(artifact), "77"]) != 0
    finally:
        busy.unlock()
    assert "is damaged, or a process that was stopped holds it" in capsys.readouterr().err
    assert main.main(["pool", "status", str(artifact)]) == 0
    said = capsys.readouterr().out
    assert "item_hits" in said and "nodes  1" in said and "replicated  100.0%" in said


def test_metrics_say_what_was_reused(
    ranking: RunningServer, asked: list[tuple[list[int], list[int]]]
) -> None:
    def tokens() -> float:
        return total(scrape(ranking.metrics_url), "genrec_rank_tokens_total", kind="user_reused")

    with Ranker(ranking.grpc_url) as ranker:
        ranker.rank(*asked[2], TOP_K, user_id=2)
        before = tokens()
        ranker.rank(*asked[2], TOP_K, user_id=2)
    until(lambda: tokens() >= before + 3 * len(asked[2][0]))


@pytest.mark.parametrize("name", ["recommend", "rank", "recommend_and_rank"])
def test_answers_are_those_of_the_plans_graphs(ranking: RunningServer, artifact: Path, name: str) -> None:
    """What compares a server of the target tensorrt with them, asked about this one."""
    found = compare(artifact, ranking.grpc_url, 4, WIDTH, name)
    assert found["agreement"] == 1 and float(found["worst_score_gap"]) < 1e-3


def test_killed_processes_and_a_lost_pool_change_no_answer(
    ranking: RunningServer, artifact: Path, asked: list[tuple[list[int], list[int]]], want: list[Any]
) -> None:
    """The pool's files go while the server runs; then the process that ranks is killed."""
    (history, candidates), answer = asked[1], want[1]
    (pool,) = pools_of(artifact)
    for file in pool.iterdir():
        file.unlink()
    with Ranker(ranking.grpc_url) as ranker:
        for _ in range(2):
            found = ranker.rank(history, candidates, TOP_K, user_id=1)
            np.testing.assert_array_equal(found.item_ids, answer["item_ids"][0])
        restarts = ranking.restarts
        os.kill(stub_of(ranking.pid, "score_candidates"), signal.SIGKILL)
        until(lambda: ranking.restarts > restarts)
        found = ranker.rank(history, candidates, TOP_K, user_id=1)
        np.testing.assert_array_equal(found.item_ids, answer["item_ids"][0])
