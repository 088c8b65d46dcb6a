"""A pre-inference whose ranking came, or of which another is to come: it goes on for as long, and no longer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from genrec import metrics
from genrec.engine.pre_infer import PartByPart, PreInference
from genrec.engine.ranking import RankPlan, RankRequest
from genrec.errors import QueueFull
from genrec.report import ADMITTED, NO_MEMORY, NO_TIME, UNDER_WAY
from genrec.schedule.scheduler import LIMIT
from tests.genrec.schedule.relay_bench import ends
from tests.genrec.schedule.test_relay import Bench, S, drawn, start

__all__ = ["start"]


def test_one_whose_ranking_was_refused_or_late_does_not_go_on(start: Callable[..., Bench]) -> None:
    bench, late = start(), ends("late")
    bench.ask(1, bench.clock.now + 5)

    def rank() -> None:
        assert bench.missing(1, drawn(1), bench.clock.now + 5.5) == S - 16
        bench.clock.now += 6

    bench.then[2] = rank
    assert bench.go() == [16, 0] and ends("late") == late + 1


@pytest.mark.parametrize("deadline_s", [None, 100.0])
def test_one_whose_ranking_the_queue_refuses_does_not_go_on(
    start: Callable[..., Bench], deadline_s: float | None
) -> None:
    """However long the ranking would have waited."""
    bench, late = start(), ends("late")
    bench.ask(1, bench.clock.now + 5)
    due_s = None if deadline_s is None else bench.clock.now + deadline_s

    def rank() -> None:
        while bench.scheduler.waiting < LIMIT:
            bench.scheduler.submit("other", 1, due_s=bench.clock.now + 50)
        with pytest.raises(QueueFull), bench.relay.missing(1, drawn(1), due_s):
            bench.scheduler.submit("ranking", 1)
        bench.clock.now += 6

    bench.then[2] = rank
    assert bench.go() == [16, 0, *["other"] * (LIMIT - 1)] and ends("late") == late + 1


def test_one_for_whose_next_part_the_queue_has_no_room_is_shed(
    start: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench, shed, failed = start(), ends("no_time"), ends("failed")
    bench.ask(1, bench.clock.now + 5)
    parts, jobs = bench._parts, bench.jobs

    def fill() -> PartByPart | None:
        while bench.scheduler.waiting < LIMIT:
            bench.scheduler.submit("other", 1, due_s=bench.clock.now + 50)
        return parts()

    bench._parts = fill
    assert bench.go() == [0, *["other"] * LIMIT] and not caplog.records
    assert (ends("no_time"), ends("failed")) == (shed + 1, failed)
    usage = jobs.pool.usage()
    assert usage and not usage["entries"] and not jobs.count


@pytest.mark.parametrize(("again_s", "want"), [(7.0, [16, 32, S]), (5.5, [16, 0])])
def test_one_that_is_asked_for_again_is_wanted_until_the_last_ranking_is_due(
    start: Callable[..., Bench], again_s: float, want: list[int]
) -> None:
    bench, late = start(), ends("late")
    now = bench.clock.now
    assert [bench.ask(1, now + due_s) for due_s in (5.0, again_s)] == [ADMITTED, UNDER_WAY]

    def go_on() -> None:
        bench.clock.now += 6

    bench.then[2] = go_on
    assert bench.go() == want and ends("late") == late + (again_s < 6)


@pytest.mark.parametrize("again_s", [1.0, None])
def test_one_that_is_asked_for_again_is_in_the_place_of_the_ranking_that_is_due_first(
    start: Callable[..., Bench], again_s: float | None
) -> None:
    """Within a lease where nobody says when. It is wanted until the last one is due, as before."""
    bench, now = start(), 1000.0
    assert [bench.ask(user, now + due_s, 16) for user, due_s in ((1, 60.0), (2, 50.0))] == [ADMITTED] * 2
    assert bench.ask(1, now + again_s if again_s else None, 16) == UNDER_WAY

    def go_on() -> None:
        bench.clock.now += 55

    bench.then[1] = go_on
    assert bench.go() == [16, 0], "of the first user, and nothing of the second: he came too late"


def test_what_a_ranking_computes_of_a_prefix_is_counted_as_its_own(start: Callable[..., Bench]) -> None:
    bench, counted = start(), metrics.PRE_INFERRED_TOKENS.value()
    bench.ask(1, bench.clock.now + 5)
    candidates = np.arange(6, dtype=np.int32).reshape(2, 3)
    asked = RankRequest(1, drawn(1), candidates, candidates), RankPlan("split", True, False)
    bench.then[2] = lambda: bench.executor.scores(*asked)
    assert bench.go() == [16] and metrics.PRE_INFERRED_TOKENS.value() == counted + 16


def test_a_part_is_charged_whose_prefix_a_ranking_of_another_stream_took_meanwhile(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, advance = start(), PartByPart.advance

    def taken(parts: PartByPart, job: PreInference, most: int, one_core: bool) -> int | None:
        computed = advance(parts, job, most, one_core)
        bench.clock.now += 0.2
        assert bench.jobs.take(job.hashes) is job
        return computed

    monkeypatch.setattr(PartByPart, "advance", taken)
    left_s = bench.relay._admission._left_s
    assert bench.ask(1) == ADMITTED and bench.go() == [16]
    assert bench.relay._admission._left_s == pytest.approx(left_s - 0.2)


@pytest.mark.parametrize(("pool_user_mb", "full"), [(1, NO_MEMORY), (16, NO_TIME)])
def test_one_that_is_under_way_needs_neither_room_nor_time_of_its_own(
    start: Callable[..., Bench], pool_user_mb: int, full: int
) -> None:
    """Where all memory, or all places of the queue, are taken."""
    bench = start(pool_user_mb=pool_user_mb)
    outcomes = [bench.ask(user) for user in range(300)]
    assert outcomes[0] == ADMITTED and outcomes[-1] == full
    assert [bench.ask(user) for user in (0, 299)] == [UNDER_WAY, full]


def test_the_queue_learns_nothing_of_what_is_dropped(start: Callable[..., Bench]) -> None:
    """It takes no time, whatever is left of it: rankings would be taken that come too late."""
    bench, late = start(), ends("late")
    teach(bench)
    for user in range(30):
        bench.ask(user, bench.clock.now - 1)
    assert bench.go() == [0] * 30 and ends("late") == late + 30
    assert bench.scheduler._cost.seconds(1, 16) > 0.015


def test_the_queue_learns_nothing_of_what_the_pool_has_by_the_time_it_begins(
    start: Callable[..., Bench],
) -> None:
    bench, candidates = start(), np.arange(6, dtype=np.int32).reshape(2, 3)
    teach(bench)
    for user in range(30):
        bench.ask(user, tokens=15)
        asked = RankRequest(user, drawn(user), candidates, candidates)
        bench.executor.scores(asked, RankPlan("split", True, False))
    assert bench.go() == [15] * 30
    assert bench.scheduler._cost.seconds(1, 16) > 0.015


def teach(bench: Bench) -> None:
    """The queue that a token takes 1 ms."""
    for tokens in [1, 16] * 100:
        bench.scheduler._cost.learn(tokens, 1e-3 * tokens)
