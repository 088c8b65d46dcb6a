"""A pre-inference whose ranking came: it goes on for as long as that waits, and no longer."""

from __future__ import annotations

from collections.abc import Callable

from tests.genrec.schedule.relay_bench import ends
from tests.genrec.schedule.test_relay import Bench, S, drawn, start

__all__ = ["start"]


def test_one_whose_ranking_was_refused_or_late_does_not_go_on(start: Callable[..., Bench]) -> None:
    bench, late = start(), ends("late")
    bench.ask(1, bench.clock.now + 5)

    def rank() -> None:
        assert bench.relay.missing(1, drawn(1), bench.clock.now + 5.5) == S - 16
        bench.clock.now += 6

    bench.then[2] = rank
    assert bench.go() == [16, 0] and ends("late") == late + 1
