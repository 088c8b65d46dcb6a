"""How often items are asked for, whether or not their KV is in the pool: what is computed ahead goes by that.

The same measure as a row's heat (`genrec.pool.items`): one per request, halved every ten minutes. Items are counted in
two tables of fixed size, each at a place that their tokens name, and the smaller count is theirs: an item that shares a
place with a hot one in both tables looks hotter than it is, and costs a few passes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from genrec.pool.coldest import HALF_LIFE_S

SLOTS = np.uint64(1 << 19)  # of a table
MIXED = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
REBASE = 32  # half-lives after which counts are written anew: they grow as time does
LONGEST = 1000.0  # half-lives, a week: a count made that much smaller is none
Heats = NDArray[np.float64]


class ItemHeat:
    """Counts of one process. Threads that count at the same moment may lose a count, nothing else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._counts = np.zeros((2, int(SLOTS)))
        self.seen = 0  # items counted so far
        # Twice at once would make every count 2**REBASE times too small
        self._writing_anew = threading.Lock()

    def see(self, tokens: NDArray[np.int32]) -> None:
        """Items with tokens int32[n, t] were asked for, each once."""
        grown = self._grown()
        if grown > 2.0**REBASE:
            with self._writing_anew:
                if (grown := self._grown()) > 2.0**REBASE:
                    self._counts /= grown
                    self._since, grown = self._clock(), 1.0
        # A later request counts for more, so that nothing need be made smaller as time passes.
        for counts, places in zip(self._counts, _places(tokens), strict=True):
            counts[np.unique(places)] += grown
        self.seen += len(tokens)

    def of(self, tokens: NDArray[np.int32]) -> Heats:
        """float64[n]: the heat of items with tokens int32[n, t] now."""
        first, second = (counts[at] for counts, at in zip(self._counts, _places(tokens), strict=True))
        heat: Heats = np.minimum(first, second) / self._grown()
        return heat

    def _grown(self) -> float:
        """What a request counts now."""
        return float(2.0 ** min((self._clock() - self._since) / HALF_LIFE_S, LONGEST))


def _places(tokens: NDArray[np.int32]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Of items with tokens int32[n, t], in either table."""
    mixed = np.full(len(tokens), MIXED)
    for column in tokens.T:
        mixed = (mixed ^ column.astype(np.uint64)) * MIXED
        mixed ^= mixed >> HALF
    return mixed % SLOTS, (mixed >> HALF) % SLOTS
