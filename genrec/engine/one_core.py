"""Small batches on one core. Two cores share little work badly: the second then does more for Triton and other steps.

A lone request of a model of 64 columns takes 2.7 ms on one core and 2.5 on two, which spend 4.8 core-ms on it.
`genrec.schedule.relay` does the same for rankings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from genrec.catalogue.validity import ValidityIndex
from genrec.engine.interface import Array, Executor, Past, ShowPrompt
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams

GAIN = 1.35  # all cores have a batch where they are so much faster than one
SHORT_S = 0.01  # a request that takes longer by itself is work enough for all cores
ROWS = (1, 2, 4, 8)  # of the batches that are tried, as many as pay on one core
TIMES = 5  # that each is tried; the fastest counts, as other processes start meanwhile


def gain(one_core: Callable[[], float], all_cores: Callable[[], float]) -> float:
    """How many times as fast as one core all are, by the seconds that each says it took."""
    both = [(one_core(), all_cores()) for _ in range(TIMES)]
    of_one, of_all = (min(seconds) for seconds in zip(*both, strict=True))
    return of_one / of_all


class OneCoreOrAll:
    """See `genrec.engine.interface.Executor`: batches that are small enough go to the one on one core."""

    captures, captured = False, 0

    def __init__(
        self,
        all_cores: Executor,
        one_core: Callable[[], Executor],
        width: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`one_core` makes the same executor for one core; `width` is the beams'."""
        self._all, self._make, self._width, self._clock = all_cores, one_core, width, clock
        self._one, self.resumes = all_cores, all_cores.resumes
        self.small = 0  # positions of the largest batch for one core

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], *,
        prompts: ShowPrompt | None = None, pasts: Sequence[Past] = (),
    ) -> list[Beams]:  # fmt: skip
        """See `Executor.answers`."""
        executor = self._one if self._positions(*tokens.shape) <= self.small else self._all
        return executor.answers(tokens, lengths, constraints, prompts=prompts, pasts=pasts)

    def rehearse(self, rows: int, span: int, valid: ValidityIndex, past: Past | None = None) -> None:
        """See `Executor.rehearse`; what is small is found here."""
        self._all.rehearse(rows, span, valid, past)
        if min(self._seconds(self._all, 1, span, valid) for _ in range(2)) > SHORT_S:  # the first compiles
            return
        one = self._make()
        one.rehearse(rows, span, valid, past)
        for count in ROWS:
            if self._gain(one, count, span, valid) >= GAIN:
                return
            self._one, self.small = one, self._positions(count, span)

    def _positions(self, rows: int, span: int) -> int:
        """That go through the model: those of prompts, and of a pass's beams."""
        return rows * (span + self._width)

    def _gain(self, one: Executor, rows: int, span: int, valid: ValidityIndex) -> float:
        return gain(*(partial(self._seconds, each, rows, span, valid) for each in (one, self._all)))

    def _seconds(self, executor: Executor, rows: int, span: int, valid: ValidityIndex) -> float:
        tokens, lengths = np.zeros((rows, span), np.int64), np.full(rows, span, np.int64)
        begun = self._clock()
        executor.answers(tokens, lengths, [Constraint(valid)] * rows)
        return self._clock() - begun
