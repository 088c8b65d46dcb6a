"""Which of the entries that the second tier keeps agrees longest with a history.

The index knows every boundary, and answers at each the newest of those that agree there: as it leaves, the next newest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.pool import index, lead
from genrec.pool.keys import Words


class TierIndex:
    """Numbers by the keys uint64[boundaries, 2] of what they name; a higher number is newer."""

    def __init__(self, keys: int) -> None:
        self._places = np.zeros((index.slots_for(keys), 3), np.uint64)
        self._keys: dict[int, Words] = {}
        self._alike: dict[bytes, set[int]] = {}  # numbers of those that begin alike

    def add(self, number: int, keys: Words) -> None:
        """Keep one that is newer than all."""
        self._keys[number] = keys
        self._alike.setdefault(keys[1].tobytes(), set()).add(number)
        index.put(self._places, keys[1:], _answers(number, 1, len(keys) - 1))

    def remove(self, number: int) -> None:
        """Drop it: where it agrees with others, the newest of these is answered from now on."""
        keys = self._keys.pop(number)
        index.remove(self._places, keys[1:], _answers(number, 1, len(keys) - 1))
        alike, entered = self._alike[keys[1].tobytes()], 0
        alike.remove(number)
        if not alike:
            del self._alike[keys[1].tobytes()]
        for other in sorted(alike, reverse=True):
            agreed = _agreed(keys, self._keys[other])
            if agreed > entered:
                index.put(self._places, keys[entered + 1 : agreed + 1], _answers(other, entered + 1, agreed))
                entered = agreed

    def clear(self) -> None:
        """Drop all."""
        self._places[:] = 0
        self._keys.clear()
        self._alike.clear()

    def find(self, keys: Words) -> tuple[int, int]:
        """(number, boundary) of the longest agreement, or (0, 0)."""
        boundary = len(keys)
        while boundary > 1:
            at, answer = index.find_last(self._places, keys[1:], boundary - 1)
            if at < 0:
                break
            boundary, number = at + 1, int(answer) & lead.ENTRY
            there = self._keys.get(number)
            if there is not None and answer >> 32 == boundary and (there[boundary] == keys[boundary]).all():
                return number, boundary
        return 0, 0


def _answers(number: int, first: int, last: int) -> NDArray[np.int64]:
    """What the index says of each of these boundaries."""
    return (np.arange(first, last + 1, dtype=np.int64) << 32) | number


def _agreed(one: Words, other: Words) -> int:
    """The last boundary at which both agree: each key is over all before it."""
    shorter = min(len(one), len(other))
    return int((one[:shorter] == other[:shorter]).all(1).sum()) - 1
