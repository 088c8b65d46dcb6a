"""Which batches go to one core, with executors whose time is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from genrec.engine.interface import Past
from genrec.engine.one_core import OneCoreOrAll

WIDTH, SPAN = 100, 32
PAST = Past(1, [])


class Told:
    """An executor that takes as long as it is told, on a clock of its own kind."""

    captures, resumes = False, False

    def __init__(self, name: str, clock: list[float], seconds: Callable[[int], float]) -> None:
        self.name, self._clock, self._seconds = name, clock, seconds
        self.rehearsed: list[tuple[int, int, Any]] = []

    def answers(
        self, tokens: Any, lengths: Any, constraints: Any, *, prompts: Any = None, pasts: Any = ()
    ) -> Any:
        self._clock[0] += self._seconds(len(tokens))
        return self.name

    def rehearse(self, rows: int, span: int, valid: Any, past: Any = None) -> None:
        self.rehearsed.append((rows, span, past))


def rehearsed(one: Callable[[int], float], both: Callable[[int], float]) -> tuple[OneCoreOrAll, list[Told]]:
    """After `rehearse`, with the executors on one core that were made."""
    clock, made = [0.0], list[Told]()

    def make() -> Told:
        made.append(Told("one", clock, one))
        return made[-1]

    all_cores = Told("all", clock, both)
    chosen = OneCoreOrAll(all_cores, make, WIDTH, lambda: clock[0])
    chosen.rehearse(1, SPAN, None, PAST)  # type: ignore[arg-type]
    assert all_cores.rehearsed == [(1, SPAN, PAST)]
    return chosen, made


def who(chosen: OneCoreOrAll, rows: int, span: int) -> Any:
    return chosen.answers(np.zeros((rows, span), np.int64), np.full(rows, span), [None] * rows)  # type: ignore[list-item]


def test_batches_go_to_one_core_as_long_as_a_second_gains_little():
    # 1.1 and 1.2 times as fast with 1 and 2 rows, 1.4 times with 4
    gain = {1: 1.1, 2: 1.2, 4: 1.4, 8: 1.0}
    chosen, made = rehearsed(lambda rows: 0.002 * rows * gain[rows], lambda rows: 0.002 * rows)
    assert made[0].rehearsed == [(1, SPAN, PAST)]
    assert [who(chosen, rows, SPAN) for rows in (1, 2, 3)] == ["one", "one", "all"]
    # What counts is what goes through the model: 2 rows of 32 tokens and 100 beams are 264 positions.
    assert [who(chosen, 1, span) for span in (164, 165)] == ["one", "all"]


def test_no_batch_is_small_where_a_second_core_helps_a_lone_request():
    chosen, made = rehearsed(lambda rows: 0.0036 * rows, lambda rows: 0.002 * rows)
    assert len(made) == 1 and who(chosen, 1, 1) == "all"


def test_a_large_model_is_not_tried():
    """It would cost the start another compiled graph, and could not be small."""
    chosen, made = rehearsed(lambda rows: 0.02, lambda rows: 0.02)
    assert not made and who(chosen, 1, 1) == "all"


def test_more_rows_than_were_tried_have_all_cores():
    chosen, _ = rehearsed(lambda rows: 0.001, lambda rows: 0.001)
    assert [who(chosen, rows, SPAN) for rows in (8, 9)] == ["one", "all"]


@pytest.mark.parametrize("stall", range(5))
def test_a_stall_while_others_start_changes_nothing(stall: int):
    calls = iter(range(1000))

    def one(rows: int) -> float:
        return 0.001 if next(calls) != stall else 1.0

    assert who(rehearsed(one, lambda rows: 0.001)[0], 8, SPAN) == "one"
