"""Cascades against a real server: rankings are those without pre-inference, and errors name their stage."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import main
from clients import cascade as stages
from clients.aio import AsyncRanker, AsyncRecommender
from clients.cascade import (
    AsyncCascade,
    Candidates,
    Cascade,
    CascadeError,
    CascadeRequest,
    recommended_by,
)
from clients.errors import BadRequest
from clients.rank_wire import Ranking
from clients.ranker import Ranker
from clients.recommender import Recommender
from clients.trigger import UNSENT, Trigger
from deploy.launcher import RunningServer
from genrec.settings import MOST_VALUES
from tests.serving.processes import until
from tests.serving.servers import brief_server
from training.data.histories import Histories

WIDTH, TOP_K, LEVELS = 16, 5, 3


@pytest.fixture(scope="module")
def served(tiny_ranker: Path) -> Iterator[RunningServer]:
    with brief_server(
        tiny_ranker,
        beam_width=WIDTH,
        ensembles=("recommend", "rank", "pre_infer"),
        lease_ms=600_000,
        pre_infer_risk=0,
    ) as server:
        yield server


def ask(kind: str, server: RunningServer, protocol: Any, how: dict[str, Any], *request: Any) -> Any:
    """One request through the cascade of `kind`; without a `retrieve` the generator retrieves."""
    url = server.grpc_url if protocol == "grpc" else server.http_url
    given = {name: each for name, each in how.items() if name != "retrieve"}
    if kind == "sync":
        with (
            Ranker(url, protocol) as ranker,
            Recommender(url, protocol) as recommender,
            Cascade(ranker, how.get("retrieve") or recommended_by(recommender, 12), **given) as cascade,
        ):
            return cascade.ask(*request)

    def later(work: Any) -> Any:
        async def run(*inputs: Any) -> Any:
            return work(*inputs)

        return run

    async def session() -> Any:
        async with AsyncRanker(url, protocol) as ranker, AsyncRecommender(url, protocol) as recommender:

            async def recommended(request: CascadeRequest) -> Candidates:
                found = await recommender.recommend(request.history, 12, exclude_history=True)
                return Candidates(found.item_ids, found.scores)

            retrieve = later(how["retrieve"]) if "retrieve" in how else recommended
            if "pre_process" in given:
                given["pre_process"] = later(given["pre_process"])
            return await AsyncCascade(ranker, retrieve, **given).ask(*request)

    return asyncio.run(session())


WAYS = [(kind, protocol) for kind in ("sync", "async") for protocol in ("grpc", "http")]
every_way = pytest.mark.parametrize(("kind", "protocol"), WAYS)


def same(found: Ranking, want: Ranking) -> None:
    np.testing.assert_array_equal(found.item_ids, want.item_ids)
    np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)


@pytest.mark.serving
class TestServed:
    @every_way
    def test_with_the_caller_s_own_functions(
        self, served: RunningServer, items: list[int], kind: str, protocol: str
    ) -> None:
        def retrieve(request: CascadeRequest) -> Candidates:
            assert (list(request.history), request.user_id) == (items[:4], 7)
            return Candidates(items[20:40])

        def drop_half(request: CascadeRequest, found: Candidates) -> Candidates:
            return Candidates(list(found.item_ids)[::2])  # type: ignore[call-overload]

        how = {"retrieve": retrieve, "pre_process": drop_half, "cascade_ms": 5000, "rank_ms": 5000}
        answer = ask(kind, served, protocol, how, items[:4], 7, TOP_K)
        with Ranker(served.grpc_url) as ranker:
            same(answer.ranking, ranker.rank(items[:4], items[20:40:2], TOP_K))
        assert list(answer.ms)[-3:] == [stages.RETRIEVAL, stages.PRE_PROCESSING, stages.RANKING]
        assert sum(answer.ms[stage] for stage in list(answer.ms)[-3:]) <= answer.total_ms

    @every_way
    def test_with_the_generator_s_candidates_and_their_scores(
        self, served: RunningServer, items: list[int], kind: str, protocol: str
    ) -> None:
        answer = ask(kind, served, protocol, {}, items[:4], 8, TOP_K)
        with Ranker(served.grpc_url) as ranker, Recommender(served.grpc_url) as recommender:
            found = recommender.recommend(items[:4], 12, exclude_history=True)
            same(answer.ranking, ranker.rank(items[:4], found.item_ids, TOP_K, scores=found.scores))

    @every_way
    def test_the_ranking_finds_what_was_computed_meanwhile(
        self, served: RunningServer, items: list[int], kind: str, protocol: str
    ) -> None:
        user = 100 + WAYS.index((kind, protocol))

        def retrieve(request: CascadeRequest) -> Candidates:
            with Ranker(served.grpc_url) as ranker:
                until(lambda: ranker.pre_infer(items[:6], user, deadline_ms=60_000).outcome == "ready")
            return Candidates(items[20:40])

        answer = ask(
            kind, served, protocol, {"retrieve": retrieve, "cascade_ms": 60_000}, items[:6], user, TOP_K
        )
        assert answer.ranking.user_reused == 6 * LEVELS
        with Ranker(served.grpc_url) as ranker:
            same(answer.ranking, ranker.rank(items[:6], items[20:40], TOP_K))
        if kind == "sync":  # in asyncio the signal waits for a retrieval that does not await
            assert answer.pre_inference and answer.pre_inference.tokens == 6 * LEVELS
            assert stages.PRE_INFER in answer.ms and not answer.problem

    def test_ten_cascades_of_one_user_at_once(self, served: RunningServer, items: list[int]) -> None:
        """He reloads two tabs in which he did different things: prefixes are told apart by what they are of."""
        histories = [items[6:16], items[6:15] + items[20:21]]

        heard = asyncio.Event()

        class Told(AsyncRanker):
            async def pre_infer(self, *given: Any, **more: Any) -> Any:
                answer = await super().pre_infer(*given, **more)
                heard.set()
                return answer

        async def retrieve(request: CascadeRequest) -> Candidates:
            await heard.wait()
            return Candidates(items[20:40])

        async def session() -> list[Any]:
            async with Told(served.grpc_url) as ranker:
                cascade = AsyncCascade(ranker, retrieve, cascade_ms=60_000)
                asked = [cascade.ask(histories[n % 2], 77, TOP_K) for n in range(10)]
                return await asyncio.wait_for(asyncio.gather(*asked), 60)

        answers = asyncio.run(session())
        with Ranker(served.grpc_url) as ranker:
            wanted = [ranker.rank(history, items[20:40], TOP_K) for history in histories]
        for number, answer in enumerate(answers):
            same(answer.ranking, wanted[number % 2])
        told = {answer.pre_inference.outcome for answer in answers if answer.pre_inference}
        # No time: all that is known of the cost is a warm-up of three tokens, and a busy machine makes it dear.
        assert told and told <= {"admitted", "under_way", "ready", "no_time"}

    def test_a_ranking_of_another_history_than_was_said(
        self, served: RunningServer, items: list[int]
    ) -> None:
        with Ranker(served.grpc_url) as ranker:
            until(lambda: ranker.pre_infer(items[:9], 78, deadline_ms=60_000).outcome == "ready")
            other = items[30:39]
            found = ranker.rank(other, items[20:40], TOP_K, user_id=78)
            assert found.user_reused == 0
            same(found, ranker.rank(other, items[20:40], TOP_K))

    @every_way
    def test_a_failing_signal_fails_nothing(
        self,
        served: RunningServer,
        items: list[int],
        kind: str,
        protocol: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for module in ("clients.ranker", "clients.aio"):
            monkeypatch.setattr(f"{module}.PRE_INFER", "none_such")
        answer = ask(kind, served, protocol, {}, items[:4], 8, TOP_K)
        assert answer.pre_inference is None and "none_such" in answer.problem
        assert len(answer.ranking.item_ids) == TOP_K

    def test_a_signal_without_an_answer_is_not_waited_for(
        self, served: RunningServer, items: list[int]
    ) -> None:
        over = threading.Event()

        class Unheard(Ranker):
            def pre_infer(self, *_: Any, **__: Any) -> Any:
                over.wait()

        with Unheard(served.grpc_url) as ranker, Cascade(ranker, lambda _: Candidates(items[:9])) as cascade:
            answer = cascade.ask(items[:4], 8, TOP_K)
            over.set()
        assert (answer.pre_inference, answer.problem) == (None, stages.NOT_YET)
        assert list(answer.ms) == [stages.RETRIEVAL, stages.RANKING] and len(answer.ranking.item_ids) == TOP_K

    def test_a_signal_that_the_server_need_not_hear_is_not_sent(
        self, served: RunningServer, items: list[int]
    ) -> None:
        class Told(Ranker):
            def pre_infer(self, *given: Any, **more: Any) -> Any:
                return replace(super().pre_infer(*given, **more), at_risk_from=5)

        answered = []

        class AsyncTold(AsyncRanker):
            async def pre_infer(self, *given: Any, **more: Any) -> Any:
                answered.append(replace(await super().pre_infer(*given, **more), at_risk_from=5))
                return answered[-1]

        async def later(request: CascadeRequest) -> Candidates:
            while request.history == items[:5] and len(answered) < 2:
                await asyncio.sleep(0.01)
            return Candidates(items[:9])

        async def session() -> list[Any]:
            async with AsyncTold(served.grpc_url) as ranker:
                cascade = AsyncCascade(ranker, later)
                cascade._trigger = trigger = Trigger(lambda: 0.0)
                trigger.learn(await ranker.pre_infer(items[:5], 8))
                return [await cascade.ask(items[:n], 8, TOP_K) for n in (4, 5)]

        with Told(served.grpc_url) as ranker, Cascade(ranker, lambda _: Candidates(items[:9])) as cascade:
            cascade._trigger = trigger = Trigger(lambda: 0.0)
            trigger.learn(ranker.pre_infer(items[:5], 8))
            found = [cascade.ask(items[:4], 8, TOP_K), *asyncio.run(session())]
        short, short_too, long = found
        assert short.pre_inference == short_too.pre_inference == UNSENT
        assert stages.PRE_INFER not in short.ms | short_too.ms and stages.PRE_INFER in long.ms
        assert long.pre_inference.outcome == "ready"
        same(short.ranking, short_too.ranking)

    @every_way
    def test_an_error_names_its_stage(
        self, served: RunningServer, items: list[int], kind: str, protocol: str
    ) -> None:
        def refuse(*_: Any) -> Candidates:
            raise ValueError("no index")

        def some(*_: Any) -> Candidates:
            return Candidates(items[:3])

        wrong = {
            "retrieval": ({"retrieve": refuse}, ValueError, "retrieval: no index"),
            "pre_processing": ({"retrieve": some, "pre_process": refuse}, ValueError, "pre_processing: no index"),
            "rank": ({"retrieve": lambda _: Candidates([1])}, BadRequest, "rank: candidates: names no item"),
        }  # fmt: skip
        for stage, (how, kind_of, text) in wrong.items():
            with pytest.raises(CascadeError, match=text) as raised:
                ask(kind, served, protocol, how, items[:4], 9)
            assert raised.value.stage == stage and isinstance(raised.value.error, kind_of)

    def test_the_command_says_where_time_went(
        self, served: RunningServer, tiny_ranker: Path, items: list[int], tmp_path: Path, capsys: Any
    ) -> None:
        """Times of the data set, which a ranker over the generator refuses, are left out. As many are found as may.

        The last user did more than a request may have.
        """
        rows = [*(np.array(items[n : n + 6]) for n in range(6)), np.resize(items[:50], MOST_VALUES + 9)]
        offsets = np.cumsum([0, *map(len, rows)])
        histories = Histories(np.arange(7), np.concatenate(rows), offsets, np.arange(offsets[-1]))
        artifact = shutil.copytree(tiny_ranker, tmp_path / "own")
        histories.save(artifact / "histories.parquet", [str(n) for n in range(7)])
        asked = ["--url", served.grpc_url, "--users", "7"]
        assert main.main(["cascade", str(artifact), *asked]) == 0
        said = capsys.readouterr().out.splitlines()
        counts = {
            row.split()[0]: row.split()[-1] for row in said if row.startswith(("retrieval", "rank", "all"))
        }
        assert counts == {"retrieval": "7", "rank": "7", "all": "7"}
        assert said[-1].endswith(" of 7 rankings found KV of their user")
        wanted = ["--user", "3", "--candidates", ",".join(map(str, items[20:30]))]
        for where in ([], ["--url", served.grpc_url]):
            assert main.main(["rank", str(artifact), *wanted, *where]) == 0
            assert "ranked by model" in capsys.readouterr().out
