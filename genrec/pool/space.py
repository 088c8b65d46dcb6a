"""Where a new entry goes among entries of any size, and which of them leave for it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.int64]


def place(
    starts: ArrayLike, sizes: ArrayLike, worth: ArrayLike, size: int, total: int
) -> tuple[int, Numbers] | None:
    """Room for `size` bytes of `total`: (offset, which entries leave), or None.

    `starts`, `sizes` int64[E] are entries that do not overlap, `worth` float64[E] what is lost when one leaves; an
    infinite worth never leaves. Entries go in the order of their worth, only as far as it takes for one gap to be wide
    enough, and of those only the ones that lie in it.
    """
    start, length = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
    offset, leaving = find_place(start, length, np.ascontiguousarray(worth, np.float64), size, total)
    return (offset, leaving) if offset >= 0 else None


@njit(cache=True, nogil=True)
def find_place(
    starts: Numbers, sizes: Numbers, worth: NDArray[np.float64], size: int, total: int
) -> tuple[int, Numbers]:
    """The same of arrays; offset -1 where there is none."""
    by_start = np.argsort(starts, kind="mergesort")  # as below: every other kind would be compiled too
    start, value = starts[by_start], worth[by_start]
    end, rank, high = start + sizes[by_start], np.empty(len(start), np.int64), 0
    for place, entry in enumerate(np.argsort(value, kind="mergesort")):
        rank[entry] = place  # who leaves first has the least
        high += value[entry] < np.inf
    low = 0
    if _gap(start, end, rank, high, size, total) < 0:
        return -1, by_start[:0]
    while low < high:  # the fewest that leave: more of them never close a gap
        middle = (low + high) // 2
        if _gap(start, end, rank, middle, size, total) < 0:
            low = middle + 1
        else:
            high = middle
    offset = _gap(start, end, rank, low, size, total)
    return offset, by_start[(rank < low) & (start < offset + size) & (end > offset)]


@njit(cache=True, nogil=True)
def _gap(start: Numbers, end: Numbers, rank: Numbers, staying: int, size: int, total: int) -> int:
    """Start of the narrowest gap that is wide enough between entries of at least the rank `staying`, or -1."""
    best, width, opens = -1, total + 1, 0
    for i in range(len(start) + 1):
        if i < len(start) and rank[i] < staying:
            continue
        closes = total if i == len(start) else start[i]
        if size <= closes - opens < width:
            best, width = opens, closes - opens
        if i < len(start):
            opens = end[i]
    return best
