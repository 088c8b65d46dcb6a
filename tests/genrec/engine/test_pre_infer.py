"""Prefixes computed part by part: the same KV, whoever ends them, and nothing computed twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.engine import pre_infer
from genrec.engine.load_ranker import create_pool, load_rank_executors
from genrec.engine.pre_infer import PreInferences
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.settings import Settings

L, LEASE_S = 3, 300
KEPT = RankPlan("split", True, False)


@pytest.fixture(scope="module")
def executor(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankExecutor]:
    folder = tmp_path_factory.mktemp("pool")
    settings = Settings(
        tiny_ranker,
        folder / "arena",
        pool=folder / "pool",
        pool_user_mb=2,
        pool_item_mb=0,
        lease_ms=1000 * LEASE_S,
    )
    config = load_config(tiny_ranker)
    create_pool(settings, config)
    (made,) = load_rank_executors(settings, config)
    yield made


@pytest.fixture(scope="module")
def alone(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> RankExecutor:
    """The twin: no pool, so that everything is computed."""
    settings = Settings(tiny_ranker, tmp_path_factory.mktemp("alone") / "arena")
    (made,) = load_rank_executors(replace(settings, pool=None), load_config(tiny_ranker))
    return made


def request_of(owner: int, length: int, seed: int = 0) -> RankRequest:
    draw = np.random.default_rng([abs(owner), seed])
    tokens = draw.integers(0, 36, (length, L)).astype(np.int32).reshape(-1)
    candidates = draw.integers(0, 36, (9, L)).astype(np.int32)
    return RankRequest(owner, tokens, candidates, candidates)


def missing(jobs: PreInferences, owner: int, tokens: NDArray[np.int32]) -> int:
    with jobs.missing(owner, tokens) as found:
        return found


def usage(executor: RankExecutor, name: str) -> int:
    assert executor.ahead
    return executor.ahead.jobs.pool.usage()[name]


@settings(max_examples=30, deadline=None)
@given(
    owner=st.integers(0, 10**9), before=st.integers(0, 15), length=st.integers(1, 16),
    parts=st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=6),
)  # fmt: skip
def test_a_ranking_takes_over_what_is_half_done_and_its_scores_are_the_twin_s(
    executor: RankExecutor,
    alone: RankExecutor,
    owner: int,
    before: int,
    length: int,
    parts: list[tuple[int, bool]],
) -> None:
    """Parts of any size, each on one core or on all, behind what the pool has of an earlier visit or behind nothing."""
    assert executor.ahead
    jobs, taken = executor.ahead.jobs, []
    jobs.taken = taken.append
    asked = request_of(owner, length)
    if 0 < before < length:
        executor.scores(asked._replace(tokens=asked.tokens[: before * L]), KEPT)
    job, ready = jobs.new(owner, asked.tokens, 0.0)
    if ready == len(asked.tokens):  # this user and history were drawn before
        return
    assert jobs.go_on(job, lambda each: None, new=True)
    again, _ = jobs.new(owner, asked.tokens, 0.0)
    assert not jobs.go_on(again, lambda each: None, new=True), "one entry is made once"
    for part, one_core in parts:
        assert executor.ahead.advance(job, part, one_core) is not None
    done = job.done
    assert done == min(ready + sum(part for part, _ in parts), len(asked.tokens)) * bool(parts)
    scores, reuse = executor.scores(asked, KEPT)
    np.testing.assert_allclose(scores, alone.scores(asked, KEPT)[0], atol=1e-5)
    assert reuse.user == (done if parts else ready) and taken == [job] and not jobs.holds(job)
    assert executor.scores(asked, KEPT)[1].user == len(asked.tokens), "it is kept for the next one"


def test_engines_with_memory_of_their_own_are_shown_what_its_ranking_will_read(
    executor: RankExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert executor.ahead
    jobs, asked, passes = executor.ahead.jobs, request_of(-7, 16), executor._passes
    kept, read, split = {}, [], passes.split
    monkeypatch.setattr(passes, "keep", lambda name, user: kept.update({name: user.copy()}))
    monkeypatch.setattr(passes, "split", lambda items, all_of: read.extend(all_of) or split(items, all_of))
    job, _ = jobs.new(-7, asked.tokens, 0.0)
    job.came_ns = time.monotonic_ns()
    assert jobs.go_on(job, lambda each: None, new=True)
    executor.ahead.advance(job, 20)
    assert not kept, "half of an entry"
    executor.ahead.advance(job, 100)
    assert jobs.end(job)
    jobs.publish(job)
    executor.scores(asked, KEPT)
    (ranking,) = read
    assert ranking.user_name and ranking.user_name.key and list(kept) == [ranking.user_name]
    np.testing.assert_array_equal(kept[ranking.user_name], ranking.user)


def test_one_that_waits_does_not_bring_back_who_was_forgotten(executor: RankExecutor) -> None:
    assert executor.ahead
    jobs, asked = executor.ahead.jobs, request_of(-5, 16)
    job, _ = jobs.new(-5, asked.tokens, 0.0)
    job.came_ns = time.monotonic_ns()
    assert jobs.go_on(job, lambda each: None, new=True)
    forget(jobs.pool, owner_key(jobs.pool.secret, -5))
    assert executor.ahead.advance(job, 100) is None and jobs.end(job)
    assert jobs.new(-5, asked.tokens, 0.0)[1] == 0
    again, _ = jobs.new(-5, asked.tokens, 0.0)
    again.came_ns = time.monotonic_ns()
    assert jobs.go_on(again, lambda each: None, new=True)
    assert executor.ahead.advance(again, 100) == len(asked.tokens), "he has come again"
    assert jobs.end(again)
    jobs.give_up(again)


def test_a_ranking_that_waited_does_not_either(executor: RankExecutor) -> None:
    assert executor.ahead
    jobs, asked = executor.ahead.jobs, request_of(-6, 16)
    came = asked._replace(came_ns=time.monotonic_ns())
    forget(jobs.pool, owner_key(jobs.pool.secret, -6))
    executor.scores(came, KEPT)
    assert jobs.new(-6, asked.tokens, 0.0)[1] == 0
    executor.scores(came._replace(came_ns=time.monotonic_ns()), KEPT)
    assert jobs.new(-6, asked.tokens, 0.0)[1] == len(asked.tokens), "he has come again"


def test_what_is_made_is_found_and_is_on_a_lease_until_then(
    executor: RankExecutor, alone: RankExecutor
) -> None:
    assert executor.ahead
    jobs, asked, used = executor.ahead.jobs, request_of(-1, 16), usage(executor, "leases_used")
    job, _ = jobs.new(-1, asked.tokens, 0.0)
    assert missing(jobs, -1, asked.tokens) == len(asked.tokens)
    jobs.go_on(job, lambda each: None, new=True)
    executor.ahead.advance(job, 20)
    assert missing(jobs, -1, asked.tokens) == len(asked.tokens) - 20
    executor.ahead.advance(job, 100)
    assert jobs.end(job) and not jobs.end(job)
    jobs.publish(job)
    assert jobs.new(-1, asked.tokens, 0.0)[1] == len(asked.tokens)
    scores, reuse = executor.scores(asked, KEPT)
    assert reuse.user == len(asked.tokens) and usage(executor, "leases_used") == used + 1
    np.testing.assert_allclose(scores, alone.scores(asked, KEPT)[0], atol=1e-5)


def test_one_that_goes_on_from_another_uses_nothing(
    executor: RankExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ranking came: both are gone after a lease."""
    assert executor.ahead
    jobs, asked, before = executor.ahead.jobs, request_of(-8, 16), usage(executor, "leases_used")
    for tokens, there in ((asked.tokens[: 8 * L], 0), (asked.tokens, 8 * L)):
        job, ready = jobs.new(-8, tokens, 0.0)
        assert ready == there and jobs.go_on(job, lambda each: None, new=True)
        assert executor.ahead.advance(job, 100) == len(tokens) - there and jobs.end(job)
        jobs.publish(job)
    assert usage(executor, "leases_used") == before
    later = int((LEASE_S + 1) * 1e9)
    monkeypatch.setattr(jobs.pool, "clock", lambda: time.monotonic_ns() + later)
    assert jobs.new(-8, asked.tokens, 0.0)[1] == 0


def test_another_history_than_was_said_is_computed_as_if_there_were_none(
    executor: RankExecutor, alone: RankExecutor
) -> None:
    assert executor.ahead
    jobs, said, asked = executor.ahead.jobs, request_of(-2, 8), request_of(-2, 8, seed=1)
    job, _ = jobs.new(-2, said.tokens, 0.0)
    jobs.go_on(job, lambda each: None, new=True)
    executor.ahead.advance(job, 5)
    scores, reuse = executor.scores(asked, KEPT)
    np.testing.assert_allclose(scores, alone.scores(asked, KEPT)[0], atol=1e-5)
    assert reuse.user == 0 and jobs.holds(job)
    assert [each is job for each in jobs.clear()] == [True]
    jobs.give_up(job)
    assert missing(jobs, -2, said.tokens) == len(said.tokens)


def test_without_a_place_nothing_is_computed(executor: RankExecutor) -> None:
    """A living process writes the same entry, or everything is in use."""
    assert executor.ahead
    jobs, asked = executor.ahead.jobs, request_of(-3, 8)
    first, _ = jobs.new(-3, asked.tokens, 0.0)
    assert executor.ahead.advance(first, 3) == 3
    second, _ = jobs.new(-3, asked.tokens, 0.0)
    assert executor.ahead.advance(second, 3) is None and second.done == 0
    jobs.give_up(first)


def test_what_the_pool_has_is_let_go_where_it_cannot_be_copied(
    executor: RankExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep its place for as long as the server lives."""
    assert executor.ahead
    jobs, asked = executor.ahead.jobs, request_of(-8, 8)
    executor.scores(asked._replace(tokens=asked.tokens[: 4 * L]), KEPT)
    job, ready = jobs.new(-8, asked.tokens, 0.0)
    released, release = [], jobs.pool.release
    monkeypatch.setattr(jobs.pool, "release", lambda entry: released.append(entry) or release(entry))

    def fails(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(pre_infer, "copy_past", fails)
    with pytest.raises(OSError, match="no memory"):
        executor.ahead.advance(job, 100)
    jobs.give_up(job)
    assert ready == 4 * L and len(released) == 1
