"""The products of a ranker's head: apart from it, as what only names its file does without a compiler."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in vector registers
def scores(
    rows: NDArray[np.float32], states: NDArray[np.float32], codes: NDArray[np.int32]
) -> NDArray[np.float32]:
    """float32[C]: states [C, hidden] times the sum of the rows [T, hidden] of codes [C, L]."""
    found = np.empty(len(codes), np.float32)
    for item in range(len(codes)):
        total = np.float32(0)
        for level in range(codes.shape[1]):
            if not 0 <= codes[item, level] < len(rows):
                raise IndexError("a token without a row")
            row = rows[codes[item, level]]
            for place in range(len(row)):
                total += row[place] * states[item, place]
        found[item] = total
    return found
