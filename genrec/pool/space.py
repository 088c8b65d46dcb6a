"""Where a new entry goes among entries of any size, and which of them leave for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LINE = 64  # bytes; entries begin on cache lines


def aligned(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // LINE) * LINE


def place(
    starts: ArrayLike, sizes: ArrayLike, worth: ArrayLike, size: int, total: int
) -> tuple[int, NDArray[np.int64]] | None:
    """Room for `size` bytes of `total`: (offset, which entries leave), or None.

    `starts`, `sizes` int64[E] are entries that do not overlap, `worth` float64[E] what is lost when one leaves; an
    infinite worth never leaves. Entries go in the order of their worth, only as far as it takes for one gap to be wide
    enough, and of those only the ones that lie in it.
    """
    start, end = np.asarray(starts, np.int64), np.asarray(starts, np.int64) + np.asarray(sizes, np.int64)
    value = np.asarray(worth, np.float64)
    order = np.argsort(start, kind="stable")
    order = order[np.argsort(value[order], kind="stable")]
    low, high = 0, int(np.isfinite(value).sum() + np.isneginf(value).sum())
    if _gap(start, end, order[high:], size, total) < 0:
        return None
    while low < high:  # the fewest that leave: more of them never close a gap
        middle = (low + high) // 2
        if _gap(start, end, order[middle:], size, total) < 0:
            low = middle + 1
        else:
            high = middle
    offset = _gap(start, end, order[low:], size, total)
    leaving = order[:low]
    return offset, leaving[(start[leaving] < offset + size) & (end[leaving] > offset)]


def _gap(
    start: NDArray[np.int64], end: NDArray[np.int64], staying: NDArray[np.int64], size: int, total: int
) -> int:
    """Start of the narrowest gap between staying entries that is wide enough, or -1."""
    order = staying[np.argsort(start[staying])]
    opens = np.concatenate(([0], end[order]))
    width = np.concatenate((start[order], [total])) - opens
    fits = np.flatnonzero(width >= size)
    return int(opens[fits[np.argmin(width[fits])]]) if len(fits) else -1
