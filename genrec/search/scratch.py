"""Memory that the search uses again and again (xGR, section 6.3), and the best of a list by its help."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from genrec.kv.layout import aligned
from genrec.search.select import threshold

Array = npt.NDArray[Any]


class Scratch:
    """All work memory of one stream; it grows to the largest use seen and stays. For one thread at a time.

    `take` hands out pieces, which all come back at `clear`. The named arrays are of the step at hand; `fit` makes them
    large enough.
    """

    def __init__(self) -> None:
        self._memory, self._used, self._wanted = np.empty(0, np.uint8), 0, 0
        self.histogram = np.empty(2048, np.int32)
        self._reserve(beams=1, candidates=1024)

    def clear(self) -> None:
        """Take every piece back."""
        if self._wanted > len(self._memory):
            self._memory = np.empty(self._wanted, np.uint8)
        self._used = self._wanted = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array whose contents are left over; a fresh one where the memory is too small this once."""
        size = aligned(math.prod(shape) * dtype.itemsize)
        self._wanted += size
        if self._used + size > len(self._memory):
            return np.empty(shape, dtype)
        start, self._used = self._used, self._used + size
        return self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def fit(self, beams: int, candidates: int) -> None:
        """Let the named arrays hold so many."""
        if beams > len(self.best) or candidates > len(self.child):
            # Doubled, so that a slowly growing catalogue does not allocate at every request.
            self._reserve(max(beams, len(self.best)), max(2 * candidates, len(self.child)))

    def _reserve(self, beams: int, candidates: int) -> None:
        self.starts = np.empty(beams + 1, np.int64)  # candidates of beam b: starts[b] .. starts[b + 1]
        self.families = np.empty(beams + 1, np.int64)  # its children, blocked ones included, likewise
        self.best = np.empty(beams, np.float32)  # its largest logit
        self.all_beams = np.arange(beams)
        self.child = np.empty(candidates, np.int32)  # node of the next level
        self.logit = np.empty(candidates, np.float32)  # its logit, then its score
        self.weight = np.empty(candidates, np.float32)  # of every child: exp(logit - best)
        self.keys = np.empty(candidates, np.uint32)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_PER_THREAD = _PerThread()


def of_thread() -> Scratch:
    """The calling thread's own, for steps whose results are kept."""
    return _PER_THREAD.scratch


def largest(score: Array, kept: int) -> npt.NDArray[np.int64]:
    """Indices of the `kept` largest of float32[C] without -0.0 (all when fewer), ascending; of equals the first."""
    if kept >= len(score):
        return np.arange(len(score))
    work = of_thread()
    work.fit(1, len(score))
    return chosen(score, *threshold(score, len(score), kept, work.keys, work.histogram))


def chosen(score: npt.NDArray[np.float32], floor: float, ties: int) -> npt.NDArray[np.int64]:
    """Indices of what is above `floor`, and of the first `ties` that equal it, ascending."""
    return np.sort(np.append(np.flatnonzero(score > floor), np.flatnonzero(score == floor)[:ties]))
