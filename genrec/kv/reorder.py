"""Move the beams' KV behind their parents inside one buffer.

xGR section 5.1 and figure 8: after a step, row i of the unshared KV must become the row of beam i's parent.
Written naively from either end, some rows are overwritten before they are read. Direct indices say which
way a row moves, and each direction has a safe order. This rests on `source` being non-decreasing, which is
why beams are kept sorted by parent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.errors import InputError

Array = npt.NDArray[Any]


def reorder_in_place(rows: Array, source: npt.ArrayLike) -> int:
    """Set rows[i] to the old rows[source[i]] for i < n, in one buffer; returns the number of rows written.

    `rows` is C-contiguous [R, width] of any type; `source` is int[n], non-decreasing, n <= R, in 0 .. R - 1.
    n may exceed the rows that were in use: beams grow. Rows from n on are left alone. A row already in its
    place is not written, so bytes copied are the result times the bytes of a row. InputError otherwise.
    """
    order = np.asarray(source)
    if wrong := _unfit(rows):
        raise InputError("rows", wrong, "a writeable C-contiguous [R, width]")
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu") or len(order) > len(rows):
        raise InputError("source", f"is {order.dtype}{list(order.shape)}", f"at most {len(rows)} integers")
    if rows.size == 0:
        return 0
    moved: int = _move(_as_words(rows), np.require(order, np.int64, ["C", "W"]))
    if moved < 0:
        raise InputError("source", "decreases or leaves the rows", f"non-decreasing, 0 to {len(rows) - 1}")
    return moved


def _unfit(rows: Array) -> str:
    """Why no rows can be moved in it, or nothing."""
    if rows.ndim != 2:
        return f"has shape {list(rows.shape)}"
    if not rows.flags.c_contiguous:
        return "is not C-contiguous"
    return "" if rows.flags.writeable else "is read-only"


def _as_words(rows: Array) -> Array:
    """The same memory as uint64 [R, words] where a row is whole words, else as uint8 [R, bytes]."""
    data = rows.view(np.uint8)
    return data.view(np.uint64) if data.shape[1] % 8 == 0 and data.ctypes.data % 8 == 0 else data


@njit(cache=True, nogil=True)
def _move(rows: Array, source: Array) -> int:
    """rows uint64 or uint8 [R, width], source int64[n]; rows written, or -1 (and nothing done) if unfit.

    Writing row i destroys it for whoever still wants to read it, some j with source[j] == i.
    Upward (source[i] > i), ascending: source[j] = i < source[i] means j < i, and j has been written.
    Downward (source[i] < i), descending: source[j] = i > source[i] means j > i, likewise.
    Across: an upward i has no downward reader j > i, as source[j] >= source[i] > i; downward ones come last.
    """
    n = len(source)
    for i in range(n):
        if source[i] < 0 or source[i] >= len(rows) or (i > 0 and source[i] < source[i - 1]):
            return -1
    written = 0
    for i in range(n):
        if source[i] > i:
            _copy(rows, source[i], i)
            written += 1
    for i in range(n - 1, -1, -1):
        if source[i] < i:
            _copy(rows, source[i], i)
            written += 1
    return written


@njit(cache=True, nogil=True)
def _copy(rows: Array, source: int, target: int) -> None:
    for k in range(rows.shape[1]):
        rows[target, k] = rows[source, k]
