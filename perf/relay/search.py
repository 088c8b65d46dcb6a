"""The largest value that holds, one measurement at a time, so that several searches can take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from perf.kit.turns import interleaved

K = TypeVar("K")
Holds = Callable[[float], bool]


class LargestHeld:
    """Doubling or halving to both sides of the answer, then bisection on a log scale."""

    def __init__(self, first: float, least: float, most: float) -> None:
        """`first` is tried first; nothing below `least` or above `most` is."""
        self._least, self._most = least, most
        self._held, self._failed = 0.0, math.inf
        self.next = min(max(first, least), most)

    @property
    def held(self) -> float:
        """The largest value that held so far; 0 for none."""
        return self._held

    @property
    def failed(self) -> float:
        """The least value that failed so far; inf for none."""
        return self._failed

    @property
    def over(self) -> bool:
        """Nothing is left to try: the least failed, or the most held."""
        return self._failed <= self._least or self._held >= self._most

    def tell(self, holds: bool) -> None:
        """Whether `next` held."""
        if holds:
            self._held = self.next
        else:
            self._failed = self.next
        if self._failed == math.inf:
            self.next = min(2 * self._held, self._most)
        elif not self._held:
            self.next = max(self._failed / 2, self._least)
        else:
            self.next = math.sqrt(self._held * self._failed)


def largest_held(
    searches: Mapping[K, tuple[LargestHeld, Holds]], measurements: int, label: str
) -> dict[K, float]:
    """The largest value of every search after so many measurements each, taken in turns."""
    for _, name in interleaved([*searches], measurements, label):
        search, holds = searches[name]
        if not search.over:
            search.tell(holds(search.next))
    return {name: search.held for name, (search, _) in searches.items()}
