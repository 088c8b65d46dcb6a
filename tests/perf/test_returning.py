"""What the benchmark of users who come again asks for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.wire import Recommendation
from perf.slo import returning
from perf.slo.returning import Asked, Visits, measure, read, trace

ITEMS = np.arange(1000)


def test_histories_grow_by_one_to_four_items_and_stay_as_they_were():
    visits = trace(ITEMS, 20, 5, 4, 1)
    assert [len(users) for users in visits] == [5] * 4
    assert [len(history) for history in visits[0]] == [20] * 5, "a first visit is as long as it is named"
    for before, after in itertools.pairwise(visits):
        for old, new in zip(before, after, strict=True):
            assert 1 <= len(new) - len(old) <= 4 and np.array_equal(new[: len(old)], old)


def test_no_turn_has_users_or_histories_of_another(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one turn left in the pool would be found by the next."""
    asked: list[tuple[Any, Any]] = []

    async def visit(_: Asked, rounds: Any, users: range | None, in_flight: int) -> Visits:
        asked.append((users, tuple(rounds[0][0].tolist())))
        answer = Recommendation(np.array([1]), np.zeros(1), "model", 0, 0, 3, 1, 1)
        return Visits(1.0, [0.1], [answer])

    monkeypatch.setattr(returning, "visit", visit)
    for cell in range(2):
        found = measure(Asked("", "recommend", 100, tiny), ITEMS, 20, 5, 3, 1, range(3 * cell, 3 * cell + 3))
        assert found["worth"] == (0, 1, 0, 6)  # the tiny catalogue has no item 1, and one is not ten
    named = [(users, history) for users, history in asked if users]
    assert len(named) == 6
    assert len({user for users, _ in named for user in users or ()}) == 30
    assert len({history for _, history in named}) == 6
    assert {history for users, history in asked if not users} == {history for _, history in named}


def test_both_ways_read_the_same_items_of_a_long_history():
    history = np.arange(110)
    (window,) = read([history], 100)
    assert window.tolist() == list(range(25, 110))  # it moves by a quarter of what is read
    assert len(read([history[:100]], 100)[0]) == 100
