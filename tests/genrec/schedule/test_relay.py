"""Who is computed ahead, in parts that rankings may interrupt; with real passes, and time that a test makes pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.engine.load_ranker import create_pool, load_rank_executors
from genrec.engine.pre_infer import PartByPart, PreInference
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.pool import leaving
from genrec.pool.tier import Cold
from genrec.report import ADMITTED, NO_HISTORY, NO_MEMORY, NO_TIME, NOT_NEEDED, READY, UNDER_WAY
from genrec.schedule import relay as module
from genrec.schedule.scheduler import Scheduler
from genrec.settings import Settings
from tests.genrec.schedule.relay_bench import Clock, RelayBench, ends

S = 48  # tokens of the longest history


class Bench(RelayBench):
    """Of a ranker over the generator's layers."""

    def __init__(self, artifact: Path, folder: Path, **given: Any) -> None:
        settings = Settings(artifact, folder / "arena", pool=folder / "pool", pool_item_mb=0, **given)
        config = load_config(artifact)
        create_pool(settings, config)
        self.executor: RankExecutor = load_rank_executors(settings, config)[0]
        super().__init__(settings, lambda: self.executor.ahead)

    def ask(self, user: int, deadline_s: float | None = None, tokens: int = S) -> int:
        return self.relay.ask(user, drawn(user, tokens), deadline_s)[0]


def drawn(user: int, tokens: int = S) -> NDArray[np.int32]:
    return np.random.default_rng(user).integers(0, 36, tokens).astype(np.int32)


@pytest.fixture
def start(
    tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Bench]]:
    monkeypatch.setattr(module, "PARTS", (32, 16))
    made = []

    def start(**given: Any) -> Bench:
        made.append(Bench(tiny_ranker, tmp_path, **{"pool_user_mb": 1, "pre_infer_risk": 0, **given}))
        return made[0]

    yield start
    made[0].relay.close()
    made[0].go()


def test_it_is_computed_in_parts_and_what_is_due_sooner_goes_between(start: Callable[..., Bench]) -> None:
    bench, made = start(), ends("made")
    due = bench.clock.now + 100
    assert bench.ask(1, due) == ADMITTED and bench.ask(1, due) == UNDER_WAY
    bench.scheduler.submit("later", 1, due + 1)
    bench.then[2] = lambda: bench.scheduler.submit("ranking", 1, due - 1)
    assert bench.go() == [16, "ranking", 32, 48, "later"]
    assert ends("made") == made + 1 and bench.ask(1) == READY


def test_those_whose_rankings_are_due_first_are_computed_first(start: Callable[..., Bench]) -> None:
    """A part of 16 takes a rest of up to 4 with it."""
    bench = start()
    for user, tokens, due in ((1, 36, 3.0), (2, 33, 1.0), (3, 30, 2.0)):
        assert bench.ask(user, bench.clock.now + due, tokens) == ADMITTED
    assert bench.go() == [16, 33, 16, 30, 16, 36]


def test_parts_are_as_large_as_a_ranking_can_wait_for(start: Callable[..., Bench]) -> None:
    """A fifth of 50 ms: 16 tokens of 0.5 ms each, 32 of 0.2 ms."""
    bench = start()
    for seconds in (0.5e-3, 0.2e-3):
        for _ in range(200):
            for past, new in ((0, 8), (8, 8), (0, 40), (40, 8)):
                bench.relay.cost.learn(False, past, new, seconds * new)
        job, _ = bench.jobs.new(None, drawn(1), 0.0)
        bench.ran.append(bench.relay._part_of(job, bench.relay.cost))
    assert bench.ran == [16, 32]
    bench.ran.clear()


def test_who_comes_again_is_brought_back_once_and_nothing_is_computed(
    start: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = start(pool_disk=str(tmp_path), pool_disk_mb=1)
    jobs, ahead = bench.jobs, bench.executor.ahead
    assert jobs.tier and ahead
    job, _ = jobs.new(1, drawn(1), 0.0)
    assert jobs.go_on(job, lambda each: None, new=True) and ahead.advance(job, S) == S and jobs.end(job)
    jobs.publish(job)
    found = jobs.pool.find_user(job.hashes, job.entries.step)
    assert found
    want = [each[:, :, :S].copy() for each in job.entries.user(found.memory, found.span)]
    jobs.tier.close()  # its thread, which alone may copy
    assert jobs.tier._keep(Cold(found, job.hashes, 2**62, jobs.tier._forgotten))
    jobs.pool.release(found)
    jobs.pool.locked(lambda mapped, table: leaving.leave(table, mapped.users, found.entry), None)
    computed, brought = metrics.PRE_INFERRED_TOKENS.value(), metrics.POOL_TIER.value(what="restored")
    due = bench.clock.now + 100
    assert bench.ask(1, due) == ADMITTED and bench.ask(1, due) == UNDER_WAY
    assert bench.go() == [S] and bench.ask(1) == READY
    assert metrics.PRE_INFERRED_TOKENS.value() == computed
    assert metrics.POOL_TIER.value(what="restored") == brought + 1
    again = jobs.pool.find_user(job.hashes, job.entries.step)
    assert again and again.tokens == S
    got = [each[:, :, :S] for each in job.entries.user(again.memory, again.span)]
    np.testing.assert_array_equal(got, want)
    jobs.pool.release(again)


def test_one_whose_ranking_was_due_is_dropped(start: Callable[..., Bench]) -> None:
    bench, late = start(), ends("late")
    bench.ask(1, bench.clock.now + 5)

    def go_on() -> None:
        bench.clock.now += 6

    bench.then[2] = go_on
    assert bench.go() == [16, 0] and ends("late") == late + 1
    assert bench.jobs.pool.usage()["entries"] == 0


def test_one_whose_ranking_waits_goes_on_however_late_it_is(start: Callable[..., Bench]) -> None:
    """The ranking behind it would have to compute what is thrown away."""
    bench, late, made = start(), ends("late"), ends("made")
    bench.ask(1, bench.clock.now + 5)

    def rank() -> None:
        assert bench.missing(1, drawn(1)) == S - 16
        bench.clock.now += 6

    bench.then[2] = rank
    assert bench.go() == [16, 32, 48]
    assert (ends("late"), ends("made")) == (late, made + 1)


def test_a_ranking_takes_what_is_half_done_and_it_does_not_run_again(start: Callable[..., Bench]) -> None:
    bench, taken = start(), ends("overtaken")
    bench.ask(1, bench.clock.now + 5)
    reused = []

    def rank() -> None:
        candidates = np.arange(6, dtype=np.int32).reshape(2, 3)
        asked = RankRequest(1, drawn(1), candidates, candidates)
        reused.append(bench.executor.scores(asked, RankPlan("split", True, False))[1].user)

    bench.then[2] = rank
    assert bench.go() == [16] and reused == [16] and ends("overtaken") == taken + 1


def test_who_has_time_is_computed_on_one_core(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody waits, and until his ranking comes, a budget before it is due."""
    advance, chosen = PartByPart.advance, []

    def noted(parts: PartByPart, job: PreInference, most: int, one_core: bool) -> int | None:
        chosen.append((job.owner, one_core))
        return advance(parts, job, most, one_core)

    monkeypatch.setattr(PartByPart, "advance", noted)
    monkeypatch.setattr(PartByPart, "has_one_core", True)
    bench = start(rank_budget_ms=50)
    first, second, soon, unknown = range(4)
    bench.ask(first, bench.clock.now + 1.0)
    bench.ask(second, bench.clock.now + 1.5)
    bench.then[1 + 2 * 3] = lambda: bench.ask(soon, bench.clock.now + 0.05)
    bench.then[1 + 3 * 3] = lambda: bench.ask(unknown)
    assert len(bench.go()) == 4 * 3
    alone = [(user, user == second) for user in range(4) for _ in range(3)]
    assert chosen == alone


def test_one_core_is_not_enough_where_it_would_take_too_long(start: Callable[..., Bench]) -> None:
    """At 1 ms a token on one core, 48 tokens are done in 48 ms; what is done counts."""
    bench = start(rank_budget_ms=50)
    for past, new in ((0, 8), (8, 8), (0, 40), (40, 8)):
        bench.relay.one_core_cost.learn(False, past, new, 1e-3 * new)
    job, _ = bench.jobs.new(None, drawn(1), 0.0)
    enough = []
    for job.wanted_s, job.done in ((0.050, 0), (0.046, 0), (0.046, 16), (0.0, 47)):
        job.wanted_s += bench.clock.now
        enough.append(bench.relay._has_time(job))
    assert enough == [True, False, True, False]


def test_a_ranking_is_short_when_one_core_ranks_within_the_time_of_a_part(
    start: Callable[..., Bench],
) -> None:
    """A fifth of 50 ms: 5 ms for the candidates, and 0.2 for every token that is missing."""
    bench = start(rank_budget_ms=50)
    short = bench.relay.is_short
    assert not short(S, 0), "nothing is known"
    for ranking, past, new in ((True, S, 0), (False, 0, 8), (False, 8, 8), (False, 0, 40), (False, 40, 8)):
        bench.relay.cost.learn(ranking, past, new, 5e-3 * ranking + 0.2e-3 * new)
    assert short(S, 0) and short(S - 20, 20) and not short(0, S)
    bench.scheduler.submit("waits", 1)
    assert not short(S, 0)
    bench.go()
    assert short(S, 0)
    bench.relay.one_core_cost.learn(True, S, 0, 12e-3)
    assert not short(S, 0)


def test_what_one_core_took_is_charged_as_if_all_had_done_it(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.relay.cost.learn(False, 0, 16, 0.01)
    job, _ = bench.jobs.new(None, drawn(1), 0.0)
    job.done = 16
    bench.relay._learn(bench.jobs, job, bench.relay.one_core_cost, 16, 0.018)
    assert job.spent_s == pytest.approx(0.01)
    assert bench.relay.one_core_cost.seconds(False, 0, 16) == pytest.approx(0.018)
    bench.relay._learn(bench.jobs, job, bench.relay.cost, 16, 0.01)
    assert job.spent_s == pytest.approx(0.02)


def test_the_queue_learns_nothing_from_what_was_slow_on_purpose() -> None:
    clock = Clock()

    def run(batch: list[str]) -> bool:
        clock.now += 1.0 if batch == ["one core"] else 0.001
        return batch != ["one core"]

    scheduler = Scheduler([run], 100, 0.0, 1, clock)
    for item in ("all cores", *["one core"] * 20):
        scheduler.submit(item, 10)
    scheduler.close()
    assert 0 < scheduler._until_done(clock.now, [10]) < 0.01


def test_only_who_is_at_risk_is_computed_ahead(start: Callable[..., Bench]) -> None:
    bench = start(rank_budget_ms=50, pre_infer_risk=60)
    assert (bench.ask(1), bench.relay.at_risk_from(None, 1)) == (NOT_NEEDED, 0), "nothing is known to be slow"
    for tokens in [10, 40] * 20:
        bench.relay.cost.learn(True, 0, tokens, 0.002 + 0.001 * tokens)
    least = bench.relay.at_risk_from(None, 1)
    assert 28 <= least <= 30 and bench.relay.at_risk_from(None, 3) == (least - 1) // 3 + 1
    assert [bench.ask(2, tokens=n) for n in (least - 1, least)] == [NOT_NEEDED, ADMITTED]
    assert bench.ask(3, tokens=0) == NO_HISTORY


def test_what_is_done_before_the_ranking_comes_is_no_risk(start: Any, monkeypatch: Any) -> None:
    bench = start(rank_budget_ms=50, pre_infer_risk=60)
    for tokens in [10, 40] * 20:
        bench.relay.cost.learn(True, 0, tokens, 0.001 * tokens)
    monkeypatch.setattr(bench.scheduler, "ahead_s", lambda _: 0.08)
    later, soon = bench.clock.now + 0.135, bench.clock.now + 0.065
    assert [bench.ask(1, when, 12) for when in (later, soon, None)] == [NOT_NEEDED, ADMITTED, UNDER_WAY]
    assert bench.relay.at_risk_from(later, 3) in (10, 11) and bench.relay.at_risk_from(soon, 3) == 1


def test_a_flood_is_bounded_by_memory(start: Callable[..., Bench]) -> None:
    """48 tokens of 256 bytes are 12 kB, a 85th of the memory."""
    bench = start()
    outcomes = [bench.ask(user) for user in range(100)]
    assert outcomes == [ADMITTED] * 85 + [NO_MEMORY] * 15
    assert bench.go()[-1] == 48
    bench.clock.now += 2
    assert bench.relay._admission.admit(1 << 20, 0.0) == ADMITTED, "their leases have ended: all is free"


def test_a_flood_is_bounded_by_time(start: Callable[..., Bench]) -> None:
    bench = start(pre_infer_share=10)
    for _ in range(20):
        bench.relay.cost.learn(False, 0, S, 0.06)
    outcomes = [bench.ask(user) for user in range(10)]
    assert outcomes == [ADMITTED] * 2 + [NO_TIME] * 8, "0.1 s are left, and 60 ms each are needed"


def test_a_flood_leaves_room_for_rankings_in_the_queue(start: Callable[..., Bench]) -> None:
    bench = start(pool_user_mb=16)
    outcomes = [bench.ask(user) for user in range(300)]
    assert outcomes == [ADMITTED] * module.MOST + [NO_TIME] * (300 - module.MOST)
    bench.scheduler.submit("ranking", 1, bench.clock.now + 0.01)
    assert bench.go()[0] == "ranking"


def test_where_nothing_can_be_kept_nothing_is_computed(start: Callable[..., Bench]) -> None:
    bench = start(pool_user_mb=0)
    assert bench.ask(1) == NO_MEMORY and bench.missing(1, drawn(1)) == S


def test_what_was_not_made_at_the_end_is_given_up(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.ask(1, bench.clock.now + 5)
    bench.then[2] = bench.relay.close
    assert bench.go() == [16, 0]
    assert bench.jobs.pool.usage()["entries"] == 0
