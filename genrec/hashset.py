"""The set of valid semantic IDs, asked in constant time.

NEZHA section 3.3, equation 5: a drafted semantic ID is verified by looking it up, without the model. The
table is two flat arrays, so it can be mapped into several processes; it also tells which leaf of the validity
index an ID is, so that its items are one more read away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.errors import InputError

MAX_LOAD = 0.6  # full slots per slot; linear probing then looks at 1.75 slots on average for a hit


@dataclass(frozen=True)
class SemanticIdSet:
    """Open addressing with linear probing; a slot is empty where `leaves` is -1, so every int64 may be a key.

    keys    int64 [capacity], capacity a power of two
    leaves  int32 [capacity], the position of the key in what `build` was given
    """

    keys: npt.NDArray[np.int64]
    leaves: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        capacity = len(self.keys)
        if capacity < 1 or capacity & (capacity - 1) or self.leaves.shape != self.keys.shape:
            raise InputError(
                "hash set", f"has {capacity} and {len(self.leaves)} slots", "equal powers of two"
            )
        if self.keys.dtype != np.int64 or self.leaves.dtype != np.int32:
            raise InputError(
                "hash set", f"is of {self.keys.dtype} and {self.leaves.dtype}", "int64 and int32"
            )
        for name in ("keys", "leaves"):  # read-only views: one type for the compiler, mapped or not
            view = np.ascontiguousarray(getattr(self, name)).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def build(cls, keys: npt.ArrayLike) -> SemanticIdSet:
        """From distinct semantic IDs int64[P]: key i answers i. InputError on a duplicate."""
        given = _int64(keys)
        if given.ndim != 1 or len(given) >= 2**30:
            raise InputError("semantic_ids", f"has shape {list(given.shape)}", "one axis, below 2**30")
        capacity = 1 << max(int(len(given) / MAX_LOAD), 1).bit_length()
        table, leaves = np.zeros(capacity, np.int64), np.full(capacity, -1, np.int32)
        duplicate = _fill(given, table, leaves)
        if duplicate >= 0:
            raise InputError("semantic_ids", f"has {given[duplicate]} twice", "distinct semantic IDs")
        return cls(table, leaves)

    def find(self, keys: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """int64[...] -> int32[...] of the same shape: the key's position, or -1. Any int64 may be asked."""
        given = _int64(keys)
        found = np.empty(given.size, np.int32)
        _find(given.reshape(-1), self.keys, self.leaves, found)
        return found.reshape(given.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.keys.nbytes + self.leaves.nbytes


def _int64(keys: npt.ArrayLike) -> npt.NDArray[np.int64]:
    given = np.asarray(keys)
    if given.size and not np.can_cast(given.dtype, np.int64):  # uint64 would wrap onto other keys
        raise InputError("semantic_ids", f"is of type {given.dtype}", "int64")
    view = np.ascontiguousarray(given, np.int64).reshape(given.shape).view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True)
def _slot(key: int, mask: int) -> np.int64:
    """Where to begin: the finaliser of splitmix64. Packed IDs differ in few digits; it spreads every bit."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) & np.uint64(mask))


@njit(cache=True, nogil=True)
def _fill(keys: npt.NDArray[Any], table: npt.NDArray[Any], leaves: npt.NDArray[Any]) -> int:
    """Put keys int64[P] in; the position of the first duplicate, or -1."""
    mask = len(table) - 1
    for i in range(len(keys)):
        slot = _slot(keys[i], mask)
        while leaves[slot] >= 0:
            if table[slot] == keys[i]:
                return i
            slot = (slot + 1) & mask
        table[slot] = keys[i]
        leaves[slot] = i
    return -1


@njit(cache=True, nogil=True)
def _find(
    keys: npt.NDArray[Any], table: npt.NDArray[Any], leaves: npt.NDArray[Any], found: npt.NDArray[Any]
) -> None:
    """keys int64[n] -> found int32[n]. Probes at most every slot once, even in a table without a gap."""
    mask = len(table) - 1
    for i in range(len(keys)):
        slot = _slot(keys[i], mask)
        found[i] = -1
        for _ in range(len(table)):
            if leaves[slot] < 0:
                break
            if table[slot] == keys[i]:
                found[i] = leaves[slot]
                break
            slot = (slot + 1) & mask
