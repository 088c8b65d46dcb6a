"""`genrec bench relay`: its searches and its verdicts by hand, and the command itself against real servers."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import main
from clients.rank_wire import Ranking
from perf.relay import figures, load, measure
from perf.relay.load import Asked, Cascaded, RelayWay
from perf.relay.measure import Rate, Spent
from perf.relay.search import LargestHeld, largest_held
from perf.slo.replay import open_loop


@given(st.floats(0.1, 5000), st.floats(1, 1000))
def test_a_search_ends_close_below_the_limit(limit: float, first: float) -> None:
    search, tried = LargestHeld(first, 1.0, 2000.0), []
    for _ in range(30):
        if not search.over:
            tried.append(search.next)
            search.tell(search.next <= limit)
    assert search.held == max((each for each in tried if each <= limit), default=0.0)
    if limit < 1:
        assert search.held == 0
    else:
        assert min(limit, 2000.0) / search.held <= 1.001


def test_searches_take_turns_and_stop_by_themselves() -> None:
    called: list[str] = []

    def below(name: str, limit: float) -> Any:
        def holds(value: float) -> bool:
            called.append(name)
            return value <= limit

        return LargestHeld(8.0, 1.0, 64.0), holds

    assert largest_held({"a": below("a", 0.5), "b": below("b", 100)}, 6, "") == {"a": 0.0, "b": 64.0}
    assert called[:4] == ["a", "b", "b", "a"] and called.count("a") == called.count("b") == 4


WANT = {7: 3.0, 8: 2.0, 9: 1.0}
ASKED = Asked(np.array([1]), np.array([7, 8, 9]), WANT)


def ranked(items: list[int], scores: list[float], reused: int = 0) -> Ranking:
    return Ranking(np.array(items), np.array(scores, np.float32), "model", 0, 0, 0, reused, 0, 2, 1, 0)


@pytest.mark.parametrize(
    ("items", "scores", "wrong"),
    [
        ([7, 8, 9], [3.0, 2.0, 1.0], False),
        ([7, 8, 9], [3.001, 2.0, 1.0], False),
        ([7, 8, 9], [3.1, 2.0, 1.0], True),
        ([8, 7, 9], [3.0, 2.0, 1.0], True),
        ([8, 7, 9], [2.0, 3.0, 1.0], True),
        ([7, 8], [3.0, 2.0], True), ([7, 8, 9], [math.nan] * 3, True),
        ([7, 8, 5], [3.0, 2.0, 1.0], True),
    ],
)  # fmt: skip
def test_what_a_wrong_answer_is(items: list[int], scores: list[float], wrong: bool) -> None:
    assert load.is_wrong(Cascaded(1, 1, ranked(items, scores), ASKED)) == wrong


def cascaded(rank_ms: float, total_ms: float, reused: int = 0, **more: Any) -> Cascaded:
    return Cascaded(rank_ms, total_ms, ranked([7, 8, 9], [3, 2, 1], reused), ASKED, "admitted", **more)


def test_a_load_holds_within_both_budgets_and_with_nearly_all_answered() -> None:
    good = [cascaded(49, 134, 30)] * 99
    assert load.point_of(RelayWay("relay"), [*good, cascaded(900, 900)]).held, "1 % may be late"
    for late in (cascaded(51, 134), cascaded(49, 136)):
        point = load.point_of(RelayWay("relay"), [*good[:98], late, late])
        assert not point.held and point.reused == 0.98
    assert load.point_of(RelayWay("two models", retrieval="recommend"), [cascaded(100, 134)] * 9).held
    failed = Cascaded(0, 0, None, ASKED, "", "rank: full")
    point = load.point_of(RelayWay("relay"), [*good, failed])
    assert (point.held, point.success, point.problems) == (False, 0.99, {"rank: full": 1})
    left = Cascaded(0, 0, None, ASKED, left=True)
    assert load.point_of(RelayWay("relay"), [*good, left]).held, "who has left needs no answer"
    assert not load.point_of(RelayWay("relay"), [left]).held


def test_nothing_more_is_sent_once_it_is_decided() -> None:
    sent: list[int] = []

    async def one(number: int, due: float) -> None:
        sent.append(number)

    decided = iter([False, False, False, True])
    asyncio.run(open_loop(np.zeros(9), time.monotonic(), one, lambda: next(decided)))
    assert sent == [0, 1, 2]


def test_clients_ask_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0

    class Client:
        def __init__(self, url: str) -> None:
            pass

        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

        async def close(self) -> None:
            pass

    sleep, pauses = asyncio.sleep, list[float]()

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def send(*_: Any) -> Cascaded:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await sleep(0)
        under_way -= 1
        return cascaded(10, 20)

    monkeypatch.setattr(load, "AsyncRanker", Client)
    monkeypatch.setattr(load, "AsyncRecommender", Client)
    monkeypatch.setattr(load, "WARM_UP", 0)
    monkeypatch.setattr(load, "sender", lambda *_: send)
    monkeypatch.setattr(asyncio, "sleep", paused)
    found = load.run(RelayWay("relay"), ["a"], [ASKED], np.zeros(20), clients=3)
    assert len(found) == 20 and most == 3
    assert len(set(pauses)) == 20 and 0.3 < np.mean(pauses) / load.PAUSE_S < 3


def test_who_is_late_or_unanswered_is_not_in_time() -> None:
    way = RelayWay("relay")
    assert load.in_time(way, cascaded(50, 135))
    assert not load.in_time(way, cascaded(51, 52)) and not load.in_time(way, cascaded(40, 136))
    assert not load.in_time(way, Cascaded(0, 0, None, ASKED, "", "rank: full"))


def test_what_was_not_measured_is_null() -> None:
    alone = {1024: {"inline": 10.0, "ready": 4.0}, 8192: {"inline": 99.0, "ready": 5.0}}
    rounds = [
        {("inline", "1500"): Rate(2.0, 4.0), ("relay", "1500"): Rate(held, math.inf)} for held in (6.0, 8.0)
    ]
    rates = {("inline", "8192"): Rate(0.0, 0.5), ("relay", "8192"): Rate(1.5, 2.0)}
    found, spread = figures.figures_of(
        1500,
        rounds,
        rates,
        {"inline": 3000.0, "relay": 4500.0},
        {"inline": 2.0, "relay": 5.0},
        {
            ("inline", "mixture"): [Spent(20.0, 900), Spent(22.0, 900)],
            ("relay", "mixture"): [Spent(21.0, 990)],
            ("inline", "1500"): [Spent(30.0, 1500)],
            ("relay", "1500"): [Spent(36.0, 1650)],
        },
        alone,
    )
    assert found["slo_rate_ratio"] == 3.5 and spread == {"slo_rate_ratio": [3.0, 4.0]}
    assert found["longest_history_ratio"] == 1.5 and found["compute_ratio"] == 1.0
    assert found["ready_growth"] == 1.25 and found["concurrency_ratio"] == 2.5
    assert found["compute_ratio_at_length"] == 1.2 and found["computed_tokens_ratio"] == 1.1
    assert found["rates"] == {"inline": {"1500": 2.0, "8192": 0.0}, "relay": {"1500": 7.0, "8192": 1.5}}
    for name in ("second_tier_50", "returning_50", "shared_backbone", "affinity"):
        assert found[f"slo_rate_ratio_{name}"] is None
    assert found["at_least"] == []
    nothing, _ = figures.figures_of(1500, [{("relay", "1500"): Rate(1.0, 2.0)}], {}, {}, {}, {}, alone)
    assert nothing["slo_rate_ratio"] is nothing["compute_ratio"] is nothing["longest_history_ratio"] is None
    one, _ = figures.figures_of(1500, rounds, rates, {}, {}, {}, {1024: alone[1024]})
    assert one["ready_growth"] is None, "one length has no growth"
    base = {
        (way, "1500"): Rate(held, 2.5) for way, held in (("inline", 0.0), ("relay", 5.0), ("two models", 0.0))
    }
    over_failed, _ = figures.figures_of(1500, [base], {}, {}, {}, {}, alone)
    assert (over_failed["slo_rate_ratio"], over_failed["at_least"]) == (2.0, ["slo_rate_ratio"])
    assert "1500" in figures.tables(found) and "3000" in figures.tables(found)


def test_without_affinity_calls_of_a_user_go_anywhere() -> None:
    class Server:
        def __init__(self) -> None:
            self.users: list[int] = []

        async def rank(self, *_: Any, user_id: int) -> None:
            self.users.append(user_id)

        async def pre_infer(self, _: Any, user_id: int) -> None:
            self.users.append(user_id)

    async def homes(affinity: bool) -> set[int]:
        servers: Any = [Server(), Server()]
        spread = load.Spread(servers, affinity)
        for user in range(20):
            await spread.pre_infer([], user)
            await spread.rank([], [], user_id=user)
        return set(servers[0].users) & set(servers[1].users)

    assert asyncio.run(homes(True)) == set()
    assert len(asyncio.run(homes(False))) > 1


def test_the_length_of_the_ratios_lies_on_the_measured_line() -> None:
    alone = {1000: {"inline": 10.0}, 3000: {"inline": 30.0}}
    assert measure.length_at(alone, 20.0) == 2001 and measure.length_at(alone, 5.0) == 999
    mixture = measure.lengths_of(measure.MIXTURE, 500, 0)
    assert 1300 < np.median(mixture) < 1700 and max(mixture) <= 8192 and min(mixture) >= measure.SHORTEST
    assert measure.lengths_of(96, 3, 0) == [96] * 3


@pytest.mark.parametrize("given", ["ways=fast", "lengths=5", "lengths=x", "model=33-1"])
def test_options_are_named(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    problems = {
        "ways=fast": "names fast",
        "lengths=5": "96 to 8192",
        "lengths=x": "tokens",
        "model=33-1": "a multiple of 32",
    }
    assert main(["bench", "relay", f"--{given}"]) == 2
    said = capsys.readouterr().err
    assert f"{given.partition('=')[0]}: " in said and problems[given] in said


@pytest.mark.long
@pytest.mark.serving
def test_the_command_measures_what_it_is_asked_and_says_null_of_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [
        "--seconds",
        "0.2",
        "--least",
        "4",
        "--measurements",
        "1",
        "--rounds",
        "1",
        "--repeats",
        "1",
        "--asks",
        "2",
    ]
    which = ["--folder", str(tmp_path), "--model", "32-1", "--lengths", "96,192"]
    assert main(["bench", "relay", *which, *sizes, "--ways", "inline; relay; shared backbone"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["wrong_answers"] == 0 and found["compute_ratio"] > 0
    assert {point["way"] for point in found["points"]} == {"inline", "relay", "shared backbone"}
    for point in found["points"]:
        assert point["requests"] >= 4 or not point["held"], "late ones end a load early"
        assert not point["problems"] and point["success"] == 1
        if point["way"] == "inline":
            assert point["reused"] == 0, "nobody comes twice"
    for name in ("second_tier_50", "shared_backbone", "affinity"):
        assert found[f"slo_rate_ratio_{name}"] is None
    assert set(found["alone"]) == {"96", "192"} and set(found["longest"]) == {"inline", "relay"}
