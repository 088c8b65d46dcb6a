"""Which rows of items leave: free ones, then the coldest.

One pass keeps the coldest so far in a heap, the hottest of them on top. With NumPy's partition and sort this took nine
seconds to compile instead of two, and a first start waits for it.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit
from numpy.typing import NDArray

FREE, FILLING, READY = range(3)  # states of a row
HALF_LIFE_S = 600.0  # of its heat
LOOKED_AT = 64  # rows per row wanted: in a large pool the coldest of a sample leave, as Redis does
FEW = 1 << 16  # rows that are all looked at
Rows = NDArray[np.int64]
Heat = NDArray[np.float64]


@njit(cache=True, nogil=True)
def coldest(
    state: NDArray[np.int8], heat: NDArray[np.float32], seen: NDArray[np.int64], count: int, now: int,
    spared: NDArray[np.int32],
) -> tuple[Rows, Heat]:  # fmt: skip
    """Up to `count` rows and their heat, the coldest first: free ones, which have none at all, then READY ones.

    Of equally cold rows the first leaves. `spared` int32[m] stay.
    """
    rows, cold, free = np.empty(count, np.int64), np.full(count, -np.inf), 0
    for row in range(len(state)):
        if free == count:
            break
        if state[row] == FREE:
            rows[free] = row
            free += 1
    missing = count - free
    if missing:
        kept = _ready(state, heat, seen, now, spared, rows[free:], cold[free:])
        rows, cold = rows[: free + kept], cold[: free + kept]
    return rows, cold


@njit(cache=True, nogil=True)
def _ready(
    state: NDArray[np.int8], heat: NDArray[np.float32], seen: NDArray[np.int64], now: int, spared: NDArray[np.int32],
    rows: Rows, cold: Heat,
) -> int:  # fmt: skip
    """The coldest READY rows, in order, into `rows` and `cold`; how many."""
    stays = np.zeros(len(state), np.bool_)
    for row in spared:
        if 0 <= row < len(state):
            stays[row] = True
    heap = [(-np.inf, 1)] * len(
        rows
    )  # of negative heat and row: the hottest on top; at first places of nobody
    parts = LOOKED_AT * len(rows)
    if len(state) <= max(FEW, parts):
        parts = len(state)
    for part in range(parts):  # one row of each part
        first, end = part * len(state) // parts, (part + 1) * len(state) // parts
        row = first if end - first == 1 else np.random.randint(first, end)
        if state[row] == READY and not stays[row]:
            left = heat[row] * np.exp2((seen[row] - now) / (HALF_LIFE_S * 1e9))
            if -left > heap[0][0]:
                heapq.heapreplace(heap, (-left, -row))
    for place in range(len(rows) - 1, -1, -1):
        left, row = heapq.heappop(heap)
        rows[place], cold[place] = -row, -left
    return (rows >= 0).sum()
