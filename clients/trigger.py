"""Which histories the server is told of ahead of their rankings: not the short ones (RelayGR, the trigger)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from clients.rank_wire import NOT_SENT, PreInference

# What a ranking takes changes slowly, and whoever is at risk brings what is new of the queue.
BELIEVED_S = 5.0
UNSENT = PreInference(NOT_SENT, 0, 0, 0)


class Trigger:
    """A signal is a request of its own, and most histories are ranked in time without: the server says with every
    answer from how many items on one is at risk, and for BELIEVED_S shorter ones are not signalled.

    Until something is known, all are. Safe between threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said = (0, -math.inf)  # items, and until when that is believed

    def wants(self, history: Any) -> bool:
        """Whether the server should hear of it; of what is no list of items the ranking will say so."""
        at_risk_from, until = self._said
        try:
            return len(history) >= at_risk_from or self._clock() > until
        except TypeError:
            return True

    def learn(self, answer: PreInference) -> None:
        """What the server has just said."""
        self._said = (answer.at_risk_from, self._clock() + BELIEVED_S)
