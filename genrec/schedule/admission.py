"""How much may be computed ahead of rankings: a bound on memory and one on time (RelayGR, the trigger).

An entry holds its bytes from its admission until it has been left unused for a lease: what is admitted in a second,
times the lease, times an entry's bytes is never more than the memory given. Time is a bucket that fills as fast as the
share of the engine's time that pre-inference may take.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from genrec.report import ADMITTED, NO_MEMORY, NO_TIME

BURST_S = 1.0  # time that a bucket saves up: of a quiet second


class Admission:
    """Safe between threads. Times are in seconds on `clock`."""

    def __init__(self, memory: int, lease_s: float, share: float, clock: Callable[[], float]) -> None:
        """`memory` bytes; `share`: seconds of the engine that may be spent per second."""
        self._memory, self._lease_s, self._share, self._clock = memory, lease_s, share, clock
        self._held = 0  # bytes of what is computed or on a lease
        self._leases: deque[tuple[float, int]] = deque()  # when each ends, and its bytes
        self._left_s, self._filled = share * BURST_S, clock()
        self._lock = threading.Lock()

    def admit(self, size: int, seconds: float) -> int:
        """ADMITTED, NO_MEMORY or NO_TIME for an entry of `size` bytes that will take so long."""
        with self._lock:
            self._pass_time()
            if self._held + size > self._memory:
                return NO_MEMORY
            if self._left_s <= 0:
                return NO_TIME
            self._held += size
            self._left_s -= seconds
            return ADMITTED

    def end(self, size: int, made: bool, unspent_s: float) -> None:
        """An admitted one is ready, or given up; it took so much less than expected (below 0: more)."""
        with self._lock:
            self._left_s += unspent_s
            if made:
                self._leases.append((self._clock() + self._lease_s, size))
            else:
                self._held -= size

    def _pass_time(self) -> None:
        now = self._clock()
        self._left_s = min(self._left_s + self._share * (now - self._filled), self._share * BURST_S)
        self._filled = now
        while self._leases and self._leases[0][0] <= now:
            self._held -= self._leases.popleft()[1]
