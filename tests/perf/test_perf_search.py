"""The search for the highest rate, against trying every rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrec.errors import ArtifactError, InputError
from perf.slo.analyzer import Point
from perf.slo.rate_search import confirm, search
from perf.slo.sweep import _search, sweep, verdict


def up_to(limit: float) -> Callable[[float], Point]:
    return lambda rate: Point(rate, rate <= limit, () if rate <= limit else ("too fast",))


@given(st.integers(0, 120), st.sampled_from([5, 10, 20]), st.sampled_from([1.0, 2.5]))
def test_finds_the_limit_within_the_precision(limit: int, step: int, precision: float) -> None:
    points = search(up_to(limit), step, 100, step, precision)
    held = max((p.rate for p in points if p.held), default=0.0)
    assert held <= limit
    if limit >= 100:
        assert held == 100 and all(p.held for p in points)
    else:  # the slow twin: every rate in steps of the precision
        slow = max(
            (n * precision for n in range(int(100 / precision) + 1) if n * precision <= limit), default=0.0
        )
        assert slow - precision <= held <= slow + precision
    assert len(points) <= 100 / step + 6
    assert len({p.rate for p in points}) == len(points)


def test_the_order_is_even_steps_then_halving() -> None:
    assert [p.rate for p in search(up_to(34), 10, 100, 10, 2)] == [10, 20, 30, 40, 35, 32.5, 33.75]


def test_when_even_the_first_rate_fails_it_looks_below() -> None:
    points = search(up_to(3), 10, 100, 10, 1)
    assert max(p.rate for p in points if p.held) == 2.5
    assert confirm(up_to(0), search(up_to(0), 10, 100, 10, 1), 1) == (0.0, [])


def test_confirmation_falls_back_to_the_next_lower_rate() -> None:
    points = search(up_to(30), 10, 50, 10, 10)
    highest, tried = confirm(up_to(25), points, 2)
    assert highest == 20 and [(p.rate, p.held) for p in tried] == [(30, False), (20, True), (20, True)]
    assert confirm(up_to(1), points, 1)[0] == 0


@pytest.mark.parametrize("rates", [(0, 10, 1, 1), (20, 10, 1, 1), (1, 10, 0, 1), (1, 10, 1, 0)])
def test_rates_that_lead_nowhere(rates: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        search(up_to(5), *rates)


def test_a_precision_of_0_is_no_default() -> None:
    with pytest.raises(InputError):
        _search(up_to(5), (1.0, 2.0, 1.0), 0.0, 0)


def test_where_nothing_can_be_served_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        sweep(tmp_path / "none", 50.0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rate_that_may_not_be_the_limit_says_so() -> None:
    found = {"slo_p99_ms": 100.0, "highest_rate": 40.0, "confirmed": True, "reached_end": False}
    assert verdict(found) == "highest rate with P99 <= 100 ms: 40 requests/s"
    assert "ended before the limit was found: 40/s was the highest" in verdict({**found, "reached_end": True})
    assert "not confirmed" in verdict({**found, "confirmed": False})
    none = {**found, "highest_rate": 0.0, "confirmed": False}
    assert verdict(none) == "no rate that was tried holds a P99 of 100 ms"
