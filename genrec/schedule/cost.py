"""What a pass will take, learnt from those before it: tokens to seconds, with the square of long histories."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

MEMORY = 0.98  # weight of the past in the moments: what a machine does is another thing an hour later
SCALE = np.array([1.0, 1e-3, 1e-6])  # of the features, so that their moments are of one size
SWEEPS = 100


class PassCost:
    """seconds = c (of a ranking: its candidates) + a tokens + b pairs, by least squares over recent passes.

    A pass of `new` tokens behind `past` ones looks at new * (past + new / 2) pairs of tokens. No factor is negative: a
    longer history is never cheaper. Safe between threads.

    Of rankings, and of users' KV computed ahead. For whole batches see `genrec.batch_cost.BatchCost`, which has no
    pairs.
    """

    def __init__(self) -> None:
        self._moments, self._with_seconds = np.zeros((3, 3)), np.zeros(3)
        # Compiled now, and not while somebody waits.
        self._factors = _not_negative(self._moments, self._with_seconds, np.zeros(3))
        self._lock = threading.Lock()

    def learn(self, ranking: bool, past: int, new: int, seconds: float) -> None:
        """A pass that took so long; of a ranking, or of a user's tokens alone."""
        self._learn(_features(ranking, past, new), seconds)

    def learn_together(self, users: Sequence[tuple[int, int]], seconds: float) -> None:
        """Rankings that took so long in all, with the tokens of each user that were there, and those that were not."""
        self._learn(np.sum([_features(True, *each) for each in users], 0), seconds)

    def _learn(self, given: NDArray[np.float64], seconds: float) -> None:
        with self._lock:
            self._moments = MEMORY * self._moments + np.outer(given, given)
            self._with_seconds = MEMORY * self._with_seconds + given * seconds
            self._factors = _not_negative(self._moments, self._with_seconds, self._factors)

    def seconds(self, ranking: bool, past: int, new: int) -> float:
        """What one like it will take; 0 as long as nothing is known."""
        return float(_features(ranking, past, new) @ self._factors)

    def tokens_of_ranking(self, seconds: float) -> float:
        """Tokens of the longest history that is ranked in `seconds` without any KV; NaN if nothing is known."""
        if not self._factors.any():
            return math.nan
        fixed, each, pair = (self._factors * SCALE).tolist()
        left = seconds - fixed
        if left <= 0:  # its candidates alone take longer, whether or not a token costs anything
            return 0.0
        slowest = each + math.sqrt(each**2 + 2 * pair * left)  # the root that does not cancel out
        return 2 * left / slowest if slowest else math.inf


def _features(ranking: bool, past: int, new: int) -> NDArray[np.float64]:
    return np.array([ranking, new, new * (past + new / 2)]) * SCALE


@njit(cache=True)
def _not_negative(
    moments: NDArray[np.float64], with_seconds: NDArray[np.float64], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The least squares under factors of at least 0: one factor after the other, from the last ones found.

    Compiled: a ranking waits for it, and in Python it took 0.7 ms.
    """
    factors = start.copy()
    for _ in range(SWEEPS):
        for i in range(len(factors)):
            if moments[i, i] > 0:
                rest = (moments[i] * factors).sum() - moments[i, i] * factors[i]
                factors[i] = max((with_seconds[i] - rest) / moments[i, i], 0.0)
    return factors
