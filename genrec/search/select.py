"""The score of the last beam kept: by xGR's min-heap (section 6.2) or by counting digits, whichever is faster here.

Both read the candidates as they come. The paper's lists are sorted, which lets its heap leave a list early; on a host,
sorting them costs more than all the rest of a step (`genrec bench selection`).
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]
REPEATS = 7
FEW = 256
_HEAP_IS_FASTER: dict[tuple[int, int], bool] = {}  # of (scores kept, bits of the number of candidates)


def threshold(score: Array, n: int, kept: int, keys: Array, histogram: Array) -> tuple[float, int]:
    """The kept-th largest of score float32[n], and how many equal to it are among the kept.

    Needs 0 < kept <= n, no NaN, no -0.0; keys uint32[n] and histogram int32[2048] are work space. What `learn` has
    not measured is counted, unless it is little: to clear the histogram takes longer then than the whole heap.
    """
    if _HEAP_IS_FASTER.get((kept, n.bit_length()), n <= FEW):
        floor, ties = by_heap(score, n, kept, keys)
        if ties:
            return floor, ties
    return by_counting(score, n, kept, keys, histogram)


def learn(kept: int, most: int) -> None:
    """Measure both ways to keep `kept` of up to `most` random scores; milliseconds, for when a process starts."""
    if most <= kept:
        return  # all are kept, and the ways may not be asked for more than there are
    draw, histogram = np.random.default_rng(0), np.empty(2048, np.int32)
    scores, keys = draw.standard_normal(2 * most, np.float32), np.empty(most, np.uint32)
    for bits in range((kept + 1).bit_length(), most.bit_length() + 1):
        n = min(max(kept + 1, 3 << bits >> 2), most)  # the middle of what has so many bits
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(REPEATS):
            start = (turn * most) // REPEATS  # never the same scores: branches must not be learnt by heart
            here = scores[start : start + n]
            begun = perf_counter()
            by_heap(here, n, kept, keys)
            between = perf_counter()
            by_counting(here, n, kept, keys, histogram)
            taken[0].append(between - begun)
            taken[1].append(perf_counter() - between)
        _HEAP_IS_FASTER[kept, bits] = median(taken[0]) < median(taken[1])


@njit(cache=True, nogil=True)
def by_heap(score: Array, n: int, kept: int, keys: Array) -> tuple[float, int]:
    """As `threshold`, by a min-heap of the best so far; (0, 0) when half of the candidates would enter it.

    Scores in random order enter kept * log(n / kept) times. In ascending order all of them do, 50 times as slow.
    """
    held = keys[:kept].view(np.float32)
    for i in range(kept):
        held[i] = score[i]
    for i in range(kept // 2 - 1, -1, -1):
        _sink(held, i)
    entries = n // 2
    for i in range(kept, n):
        if score[i] > held[0]:
            held[0] = score[i]
            _sink(held, 0)
            entries -= 1
            if entries < 0:
                return 0.0, 0
    ties = kept
    for i in range(kept):
        ties -= held[i] > held[0]
    return float(held[0]), ties


@njit(cache=True, nogil=True)
def _sink(held: Array, place: int) -> None:
    """Let an entry of the min-heap down to where it belongs."""
    moved = held[place]
    while True:
        child = 2 * place + 1
        if child >= len(held):
            break
        if child + 1 < len(held) and held[child + 1] < held[child]:
            child += 1
        if moved <= held[child]:
            break
        held[place] = held[child]
        place = child
    held[place] = moved


@njit(cache=True, nogil=True)
def by_counting(score: Array, n: int, kept: int, keys: Array, histogram: Array) -> tuple[float, int]:
    """As `threshold`, by a radix selection on bits that order as the floats do: 11 bits, the survivors' next 11, and
    the last 10. Linear however the scores are distributed.
    """  # fmt: skip
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
