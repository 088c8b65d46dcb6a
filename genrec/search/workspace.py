"""Work arrays of beam search, and the best of a list by their help (xGR, section 6.3)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from genrec.search.select import threshold

Array = npt.NDArray[Any]


class Workspace:
    """Arrays that steps share; they grow to the largest step seen and stay. One per thread."""

    def __init__(self) -> None:
        self.histogram = np.empty(2048, np.int32)
        self._reserve(beams=1, candidates=1024)

    def _reserve(self, beams: int, candidates: int) -> None:
        self.starts = np.empty(beams + 1, np.int64)  # candidates of beam b: starts[b] .. starts[b + 1]
        self.families = np.empty(beams + 1, np.int64)  # its children, blocked ones included, likewise
        self.best = np.empty(beams, np.float32)  # its largest logit
        self.all_beams = np.arange(beams)
        self.child = np.empty(candidates, np.int32)  # node of the next level
        self.logit = np.empty(candidates, np.float32)  # its logit, then its score
        self.weight = np.empty(candidates, np.float32)  # of every child: exp(logit - best)
        self.keys = np.empty(candidates, np.uint32)

    def fit(self, beams: int, candidates: int) -> None:
        """Make room."""
        if beams > len(self.best) or candidates > len(self.child):
            # Doubled, so that a slowly growing catalogue does not allocate at every request.
            self._reserve(max(beams, len(self.best)), max(2 * candidates, len(self.child)))


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.workspace = Workspace()


_PER_THREAD = _PerThread()


def of_thread() -> Workspace:
    """The calling thread's own."""
    return _PER_THREAD.workspace


def largest(score: Array, kept: int, workspace: Workspace | None = None) -> npt.NDArray[np.int64]:
    """Indices of the `kept` largest of float32[C] without -0.0 (all when fewer), ascending; of equals the first."""
    work = of_thread() if workspace is None else workspace
    if kept >= len(score):
        return np.arange(len(score))
    work.fit(1, len(score))
    return chosen(score, *threshold(score, len(score), kept, work.keys, work.histogram))


def chosen(score: npt.NDArray[np.float32], floor: float, ties: int) -> npt.NDArray[np.int64]:
    """Indices of what is above `floor`, and of the first `ties` that equal it, ascending."""
    return np.sort(np.append(np.flatnonzero(score > floor), np.flatnonzero(score == floor)[:ties]))
