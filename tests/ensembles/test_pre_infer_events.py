"""Users of an HSTU ranker computed ahead, in the local runtime: rankings find them, and no answer depends on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles.local import LocalRecommender
from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest
from genrec.errors import GenrecError, InputError
from genrec.models.prompt import window_start
from genrec.pool.pool import Pool
from genrec.report import ADMITTED, NO_HISTORY, NO_MEMORY, NO_TIME, NOT_NEEDED, READY, PreInferReport
from genrec.steps import Answer
from tests.oracles.hstu_asked import ByTorch, check_ranking, events_of
from tests.serving.processes import until

F = 3  # features of `events_of`
MOST = 16
ALWAYS: dict[str, Any] = {"pre_infer_risk": 0, "pool_user_mb": 1, "pre_infer_share": 100}


@pytest.fixture(scope="module")
def local(tiny_hstu: Path) -> Iterator[LocalRecommender]:
    """A lease that no slow machine outlives, and one ranking at a time."""
    with LocalRecommender(tiny_hstu, 16, threads=1, decoder="rank", lease_ms=600_000, **ALWAYS) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def by_torch(tiny_hstu: Path) -> ByTorch:
    return ByTorch(tiny_hstu)


def past(events: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a signal says of them."""
    return {name: values for name, values in events.items() if name != "now"}


def ahead(
    local: LocalRecommender, history: list[int], user: int, deadline_ms: int | None = None, **events: Any
) -> PreInferReport:
    (answer,) = local.pre_infer([history], user, deadline_ms, **events)
    assert isinstance(answer, dict), answer
    return PreInferReport(*answer["report"][0].tolist())


def made(local: LocalRecommender, history: list[int], user: int, **events: Any) -> None:
    """Asked for, and computed."""
    until(lambda: ahead(local, history, user, 60_000, **events).outcome == READY)


@pytest.mark.parametrize("count", [1, 12, 16, 40])
def test_a_ranking_finds_what_was_computed_ahead(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], count: int
) -> None:
    """A short history, one as long as the window, and one whose oldest items are cut off."""
    events, history, asked = events_of(np.random.default_rng(count), count), items[:count], items[100:130]
    read = F + count - window_start(count, MOST)
    assert ahead(local, history, count, **past(events)) == PreInferReport(ADMITTED, read, 0, 0)
    until(lambda: ahead(local, history, count, **past(events)) == PreInferReport(READY, read, read, 0))
    want = by_torch(history, asked, **events)
    (answer,) = local.rank([(history, asked)], 5, user_id=count, **events)
    assert check_ranking(answer, want, 5).user_reused == read
    (other,) = local.rank([(history, asked)], 5, user_id=10_000 + count, **events)
    assert check_ranking(other, want, 5).user_reused == 0, "another user's"


def test_when_a_ranking_is_asked_for_is_no_part_of_the_user(
    local: LocalRecommender, by_torch: ByTorch, items: list[int]
) -> None:
    events, history, asked = events_of(np.random.default_rng(1), 9), items[:9], items[50:70]
    made(local, history, 50, **past(events))
    for later in (0, 3600, 10**9):
        given = {**events, "now": events["times"][:, -1:] + later}
        (answer,) = local.rank([(history, asked)], 5, user_id=50, **given)
        assert check_ranking(answer, by_torch(history, asked, **given), 5).user_reused == F + 9


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({"ratings": np.array([[5, 5, 5, 5, 1]], np.int32)}, F + 4),
        ({"times": np.array([[10, 20, 31, 40, 50]])}, F + 2),
        ({"features": np.array([[2, 5, 6]], np.int32)}, 0),
    ],
)
def test_where_a_ranking_says_something_else_it_is_computed(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], change: dict[str, np.ndarray], agree: int
) -> None:
    events = {
        "features": np.array([[2, 5, 7]], np.int32),
        "ratings": np.full((1, 5), 5, np.int32),
        "times": np.array([[10, 20, 30, 40, 50]]),
    }
    history, asked, user = items[20:25], items[50:70], 60 + sum(int(each.sum()) for each in change.values())
    made(local, history, user, **events)
    (answer,) = local.rank([(history, asked)], 10, user_id=user, **{**events, **change})
    want = by_torch(history, asked, **{**events, **change})
    assert check_ranking(answer, want, 10).user_reused == agree


@settings(max_examples=25, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 24), st.integers(0, 2)), min_size=2, max_size=10
    )
)  # fmt: skip
def test_whatever_is_computed_ahead_an_answer_is_the_module_s(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], asked: list[tuple[bool, int, int, int]]
) -> None:
    """Signals that nobody follows, histories that grow, ratings that change, rankings that come at once or later."""
    for early, user, count, wrong in asked:
        events, history = events_of(np.random.default_rng(user), count), items[30 * user : 30 * user + count]
        events["ratings"][:, :wrong] = events["ratings"][:, :wrong] % 5 + 1
        if early:
            said = ahead(local, history, user, 60_000, **past(events))
            assert said.tokens == F + count - window_start(count, MOST)
        else:
            (answer,) = local.rank([(history, items[200:210])], 5, user_id=user, **events)
            check_ranking(answer, by_torch(history, items[200:210], **events), 5)


def test_a_user_with_ten_cascades_at_once_gets_ten_right_answers(
    local: LocalRecommender, by_torch: ByTorch, items: list[int]
) -> None:
    def cascade(number: int) -> tuple[dict[int, float], Answer]:
        history, asked = items[150 : 158 + number % 3], items[10 * number : 10 * number + 20]
        events = events_of(np.random.default_rng(number % 3), len(history))
        ahead(local, history, 77, 60_000, **past(events))
        (answer,) = local.rank([(history, asked)], 5, user_id=77, **events)
        return by_torch(history, asked, **events), answer

    with ThreadPoolExecutor(10) as pool:
        for want, answer in pool.map(cascade, range(10)):
            check_ranking(answer, want, 5)


def test_a_flood_that_nobody_follows_is_bounded_and_rankings_go_on(
    tiny_hstu: Path, by_torch: ByTorch, items: list[int]
) -> None:
    with LocalRecommender(tiny_hstu, 16, decoder="rank", lease_ms=600_000, **ALWAYS) as local:
        outcomes = [ahead(local, items[:16], user, 60_000).outcome for user in range(200)]
        assert 0 < outcomes.count(ADMITTED) <= 85, "12 kB each, of 1 MB"
        assert set(outcomes) <= {ADMITTED, NO_MEMORY, NO_TIME}, "a machine that is slow has no time first"
        (answer,) = local.rank([(items[:9], items[50:80])], 5, user_id=1)
        check_ranking(answer, by_torch(items[:9], items[50:80]), 5)


def test_what_a_client_that_left_asked_for_goes_after_its_lease(tiny_hstu: Path, items: list[int]) -> None:
    with LocalRecommender(tiny_hstu, 16, decoder="rank", lease_ms=50, **ALWAYS) as local:
        assert local.settings.pool
        pool = Pool(local.settings.pool)
        assert ahead(local, items[:9], 1, 60_000).outcome == ADMITTED
        until(lambda: pool.usage()["leases_unused"] == 1)
        assert pool.usage()["entries"] == 0


def test_only_who_is_at_risk_and_known_is_computed_ahead(tiny_hstu: Path, items: list[int]) -> None:
    """A budget of a minute is no risk; features alone are something to compute."""
    with LocalRecommender(tiny_hstu, 16, decoder="rank", rank_budget_ms=60_000) as local:
        assert ahead(local, items[:5], 1).outcome == NOT_NEEDED
        assert ahead(local, [-1, -2], 1) == PreInferReport(NO_HISTORY, 0, 0, 2)
        features = {"features": np.array([[3]], np.int32)}
        assert ahead(local, [], 1, **features) == PreInferReport(NOT_NEEDED, 1, 0, 0)
    with LocalRecommender(tiny_hstu, 16, decoder="rank", **{**ALWAYS, "pool_user_mb": 0}) as local:
        assert ahead(local, items[:5], 1).outcome == NO_MEMORY


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"user_id": None}, "user_id: is missing"),
        ({"history": None}, "history: is missing"),
        ({"deadline_ms": np.array([[0]])}, "deadline_ms: is 0 (accepted: 1 to 600000)"),
        ({"ratings": np.array([[1, 2]], np.int32)}, "ratings: has 2 values (accepted: 3)"),
        ({"ratings": np.array([[1, 6, 2]], np.int32)}, "ratings: has 6 (accepted: 1 to 5, 0 where"),
        ({"times": np.array([[5, 9, 7]])}, "times: has 7 after 9 (accepted: seconds, oldest first)"),
        ({"features": np.array([[8]], np.int32)}, "features: has 8 (accepted: 1 to 7"),
        ({"features": np.ones((1, 17), np.int32)}, "features: has 17 values (accepted: at most 16)"),
    ],
)
def test_bad_input_is_answered_with_the_field_and_the_limit(
    local: LocalRecommender, items: list[int], change: dict[str, Any], problem: str
) -> None:
    tensors = {"history": np.array([items[:3]]), "user_id": np.array([[1]]), **change}
    assert local.ahead
    (answer,) = local.ahead.run([{name: value for name, value in tensors.items() if value is not None}])
    assert isinstance(answer, GenrecError) and problem in str(answer)


def test_the_other_ranker_reads_items_alone(tiny_ranker: Path, items: list[int]) -> None:
    with LocalRecommender(tiny_ranker, 16, decoder="rank") as local:
        (answer,) = local.pre_infer([items[:1]], 1, ratings=np.ones((1, 1), np.int32))
    assert isinstance(answer, InputError) and "ratings: is given (accepted: nothing" in str(answer)


def test_rankings_run_in_the_order_in_which_they_are_due(
    local: LocalRecommender, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, begun, go = list[int | None](), threading.Event(), threading.Event()
    scores = HstuExecutor.scores

    def gated(self: HstuExecutor, request: HstuRequest) -> Any:
        order.append(request.owner)
        begun.set()
        assert go.wait(60)
        return scores(self, request)

    def rank(user: int, deadline_ms: int) -> Answer:
        due = {"deadline_ms": np.array([[deadline_ms]], np.int32)}
        return local.rank([(items[:9], items[50:60])], 5, user_id=user, **due)[0]

    monkeypatch.setattr(HstuExecutor, "scores", gated)
    queue: Any = local.runtime._steps["score_candidates"]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(rank, 201, 60_000)]
        assert begun.wait(60)
        for user, deadline_ms in ((202, 50_000), (203, 40_000)):
            answers.append(pool.submit(rank, user, deadline_ms))
            until(lambda: len(queue._scheduler._queue) == len(answers) - 1)
        go.set()
        assert all(isinstance(each.result(), dict) for each in answers)
    assert order == [201, 203, 202]
