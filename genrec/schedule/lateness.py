"""How much longer than estimated work takes at present: what one of twenty in the last second was later than.

A share of a window, and no average: a batch that met a stall makes a few of some hundred late, and must not make a
server refuse for seconds what it could answer. When hardly anything is admitted, the window empties by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

WINDOW_S = 1.0
MOST = 256  # of a window
EXCEEDED = 0.05  # share


class Lateness:
    """Of what was done in the last second. For one thread at a time."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=MOST)  # when it was done, by how much later
        self._margin_s: float | None = 0.0  # None: to be found anew; there are more questions than answers

    def add(self, now: float, late_s: Iterable[float]) -> None:
        """What was done at `now` (seconds on the caller's clock), so much later than estimated; earlier is below 0."""
        self._seen.extend((now, late) for late in late_s)
        self._margin_s = None

    def margin_s(self, now: float) -> float:
        """Seconds that an estimate needs on top so that one in twenty is exceeded; 0 when nothing was done lately."""
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
            self._margin_s = None
        if self._margin_s is None:
            late = sorted(each for _, each in self._seen)
            self._margin_s = max(late[int((1 - EXCEEDED) * len(late))], 0.0) if late else 0.0
        return self._margin_s
