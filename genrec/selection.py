"""The score of the last beam kept, by counting digits: xGR's section 6.2 without a heap (see `genrec.beam`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]


@njit(cache=True, nogil=True)
def threshold(score: Array, n: int, kept: int, keys: Array, histogram: Array) -> tuple[float, int]:
    """The kept-th largest of score float32[n], and how many equal to it are among the kept.

    A radix selection on bits that order as the floats do: 11 bits, the survivors' next 11, and the last 10.
    Linear however the scores are distributed. Needs 0 < kept <= n.
    """
    bits = score.view(np.uint32)
    histogram[:] = 0
    for i in range(n):
        sign = np.uint32(np.int32(bits[i]) >> 31)
        keys[i] = bits[i] ^ (sign | np.uint32(0x80000000))
        histogram[keys[i] >> np.uint32(21)] += 1
    digit, kept = _digit_of(histogram, kept)
    first = 0
    for i in range(n):
        key = keys[i]
        keys[first] = key  # written whether or not it survives: no branch to mispredict
        first += (key >> np.uint32(21)) == digit
    histogram[:] = 0
    for i in range(first):
        histogram[(keys[i] >> np.uint32(10)) & np.uint32(2047)] += 1
    digit, kept = _digit_of(histogram, kept)
    second = 0
    for i in range(first):
        key = keys[i]
        keys[second] = key
        second += ((key >> np.uint32(10)) & np.uint32(2047)) == digit
    histogram[:] = 0
    for i in range(second):
        histogram[keys[i] & np.uint32(1023)] += 1
    digit, kept = _digit_of(histogram, kept)
    last = (keys[0] & np.uint32(0xFFFFFC00)) | np.uint32(digit)
    keys[0] = last ^ (np.uint32(0x80000000) if last >> np.uint32(31) else np.uint32(0xFFFFFFFF))
    return keys[:1].view(np.float32)[0], kept


@njit(cache=True, nogil=True)
def _digit_of(histogram: Array, kept: int) -> tuple[int, int]:
    """The digit that the kept-th largest has, of int32[2048] counts, and which of its own it is from the top."""
    digit = len(histogram) - 1
    while histogram[digit] < kept:
        kept -= histogram[digit]
        digit -= 1
    return digit, kept
