"""What the benchmark of the constraint times, and in which order."""

from __future__ import annotations

from functools import partial

from perf.parts.constraint import EXCLUDED, LEVELS, TOP_K, WIDTHS, steps_of, timings


def test_steps_take_turns_and_the_first_round_is_not_counted() -> None:
    came: list[str] = []
    found = timings({name: partial(came.append, name) for name in ("step", "unconstrained", "decode")}, 3)
    rounds = [came[first : first + 3] for first in range(0, len(came), 3)]
    assert len(rounds) == 4 and all(len(set(each)) == 3 for each in rounds)
    assert len({each[0] for each in rounds}) > 1, "nobody is always first"
    assert list(found) == ["step", "unconstrained", "decode"]
    assert all(0 <= us["q25"] <= us["median"] <= us["q75"] for us in found.values())


def test_every_step_of_a_search_is_there_and_runs() -> None:
    memory, steps = steps_of(64, 2000)
    assert all(value > 0 for value in memory.values())
    for width in WIDTHS:
        each = [*(f"level {level}" for level in range(1, LEVELS + 1)), f"lookup top {TOP_K}", "unconstrained"]
        assert {f"T64 BW{width} {name}" for name in each} <= set(steps)
    assert {f"T64 blocked({EXCLUDED} rows)", f"T64 blocked(all but {EXCLUDED} rows)"} <= set(steps)
    assert all(call() is not None for call in steps.values())
