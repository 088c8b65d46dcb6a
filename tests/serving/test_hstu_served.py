"""An HSTU ranker behind a real tritonserver: its scores are the torch module's."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli import main
from clients.aio import AsyncRanker
from clients.cascade import AsyncCascade, Candidates, Cascade, CascadeAnswer, CascadeRequest
from clients.errors import BadRequest
from clients.rank_wire import PreInference, Ranking
from clients.ranker import Ranker
from deploy.launcher import RunningServer
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu
from tests.oracles.hstu_asked import Asked, logits_of
from tests.serving.processes import stub_of, until
from tests.serving.ranked import check, check_behind_a_retrieval, check_commands, ranking_server


@pytest.fixture(scope="module")
def ranking(tiny_hstu: Path) -> Iterator[RunningServer]:
    with ranking_server(tiny_hstu, probe_every_s=0.5) as server:
        yield server


@pytest.fixture(scope="module")
def asked(tiny_hstu: Path) -> dict[str, Any]:
    """Arguments of a client."""
    ids = Catalogue.load(tiny_hstu / "catalogue.parquet").item_ids
    times = [10, 10, 500, 900, 5000, 10**6, 10**7]
    known = {"ratings": [1, 5, 2, 4, 3, 5, 1], "times": times, "now": 10**7 + 60, "features": [1, 4]}
    return {"history": ids[:7].tolist(), "candidates": ids[40:60].tolist(), "top_k": 20, **known}


@pytest.fixture(scope="module")
def want(tiny_hstu: Path, asked: dict[str, Any]) -> dict[int, float]:
    """Item -> score by torch."""
    given = Asked(range(7), asked["ratings"], asked["times"], asked["now"], asked["features"])
    found = logits_of(load_hstu(tiny_hstu / "model"), given, range(40, 60))[:, 0]
    return dict(zip(asked["candidates"], found.tolist(), strict=True))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_scores_are_torch_s(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float], protocol: Any
) -> None:
    with Ranker(ranking.grpc_url if protocol == "grpc" else ranking.http_url, protocol) as ranker:
        check(ranker.rank(**asked), want)
        unknown = ranker.rank(asked["history"], asked["candidates"], 20)
    assert max(abs(want[i] - s) for i, s in zip(unknown.item_ids, unknown.scores, strict=True)) > 0.01


async def _ask(url: str, asked: dict[str, Any]) -> Ranking:
    async with AsyncRanker(url) as ranker:
        return await ranker.rank(**asked)


def test_the_client_for_asyncio_and_the_command_line_ask_the_same(
    ranking: RunningServer, tiny_hstu: Path, asked: dict[str, Any], want: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    check(asyncio.run(_ask(ranking.grpc_url, asked)), want)
    check_commands(tiny_hstu, ranking.grpc_url, asked, want, capsys)


def test_behind_a_retrieval_too(ranking: RunningServer, asked: dict[str, Any]) -> None:
    check_behind_a_retrieval(ranking.grpc_url, asked)


def test_a_wrong_request_is_told_what_is_wrong(ranking: RunningServer, asked: dict[str, Any]) -> None:
    with Ranker(ranking.grpc_url) as ranker, pytest.raises(BadRequest, match=r"ratings: has 6 .*1 to 5"):
        ranker.rank(**{**asked, "ratings": [6] * 7})


def past(asked: dict[str, Any]) -> dict[str, Any]:
    """What a signal says: all of the user, nothing of the ranking."""
    return {name: asked[name] for name in ("history", "ratings", "times", "features")}


def made(url: str, asked: dict[str, Any], user: int) -> PreInference:
    """Asked for ahead, and computed."""
    with Ranker(url) as ranker:
        until(lambda: ranker.pre_infer(**past(asked), user_id=user, deadline_ms=60_000).outcome == "ready")
        return ranker.pre_infer(**past(asked), user_id=user)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_ranking_finds_what_was_computed_ahead_of_it(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float], protocol: Any
) -> None:
    user = 11 if protocol == "grpc" else 12
    assert made(ranking.grpc_url, asked, user) == PreInference("ready", 9, 9, 0)
    with Ranker(ranking.grpc_url if protocol == "grpc" else ranking.http_url, protocol) as ranker:
        found, inline = ranker.rank(**asked, user_id=user), ranker.rank(**asked, user_id=user + 100)
    check(found, want)
    check(inline, want)
    assert (found.user_reused, inline.user_reused) == (9, 0)


def test_where_the_ranking_says_other_ratings_they_count(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float]
) -> None:
    made(ranking.grpc_url, {**asked, "ratings": [1, 5, 2, 4, 3, 1, 5]}, 20)
    with Ranker(ranking.grpc_url) as ranker:
        found = ranker.rank(**asked, user_id=20)
    check(found, want)
    assert found.user_reused == 2 + 5


def test_a_wrong_signal_is_told_what_is_wrong(ranking: RunningServer, asked: dict[str, Any]) -> None:
    with Ranker(ranking.grpc_url) as ranker, pytest.raises(BadRequest, match=r"ratings: has 6 .*1 to 5"):
        ranker.pre_infer(**{**past(asked), "ratings": [6] * 7}, user_id=1)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_cascade_says_what_is_known_twice(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float], kind: str
) -> None:
    """To the signal and to the ranking; the retrieval waits until the user is there."""
    user, given = 30 + len(kind), {name: each for name, each in asked.items() if name != "candidates"}
    url = ranking.grpc_url

    def retrieve(request: CascadeRequest) -> Candidates:
        assert request.past() == {name: asked[name] for name in ("ratings", "times", "features")}
        made(url, asked, user)
        time.sleep(0.5)  # what the signal is answered is on its way, and a ranking takes milliseconds
        return Candidates(asked["candidates"])

    async def retrieve_later(request: CascadeRequest) -> Candidates:
        return await asyncio.to_thread(retrieve, request)

    async def session() -> CascadeAnswer:
        async with AsyncRanker(url) as ranker:
            return await AsyncCascade(ranker, retrieve_later, cascade_ms=60_000).ask(**given, user_id=user)

    if kind == "async":
        answer = asyncio.run(session())
    else:
        with Ranker(url) as ranker, Cascade(ranker, retrieve, cascade_ms=60_000) as cascade:
            answer = cascade.ask(**given, user_id=user)
    check(answer.ranking, want)
    assert answer.ranking.user_reused == 9 and not answer.problem
    assert answer.pre_inference and answer.pre_inference.tokens == 9


def test_the_command_runs_cascades(
    ranking: RunningServer, tmp_path: Path, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.array([asked["history"]] * 3, pa.list_(pa.int64()))
    pq.write_table(pa.table({"user_id": [40, 41, 42], "items": rows}), tmp_path / "histories.parquet")
    assert main.main(["cascade", str(tmp_path), "--url", ranking.grpc_url, "--retrieve", "16"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" of 3 rankings found KV of their user")


@pytest.mark.long
def test_who_computes_ahead_may_be_killed_in_the_middle_of_cascades(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float]
) -> None:
    with Ranker(ranking.grpc_url) as ranker:
        for user in range(300, 320):
            ranker.pre_infer(**past(asked), user_id=user, deadline_ms=60_000)
        restarts = ranking.restarts
        os.kill(stub_of(ranking.pid, "score_candidates"), signal.SIGKILL)
        until(lambda: ranking.restarts > restarts)
        for user in (300, 319):
            check(ranker.rank(**asked, user_id=user), want)
    made(ranking.grpc_url, asked, 400)


def test_a_flood_that_nobody_follows_is_bounded_and_rankings_go_on(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float]
) -> None:
    with Ranker(ranking.grpc_url) as ranker:
        users = range(1000, 1120)
        outcomes = [
            ranker.pre_infer(**past(asked), user_id=user, deadline_ms=60_000).outcome for user in users
        ]
        assert 0 < outcomes.count("admitted") <= 85, "12 kB each, of 1 MB"
        assert set(outcomes) <= {"admitted", "no_memory", "no_time"}
        check(ranker.rank(**asked, user_id=1), want)
