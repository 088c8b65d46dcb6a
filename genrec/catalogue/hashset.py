"""The set of valid semantic IDs, asked in constant time.

NEZHA section 3.3, equation 5: a drafted semantic ID is verified by looking it up, without the model. The
table is two flat arrays, so it can be mapped into several processes; it also tells which leaf of the validity
index an ID is, so that its items are one more read away.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.catalogue.validity import frozen
from genrec.cores import usable_cores
from genrec.errors import InputError
from genrec.tensor_file import mapped_tensors, read_metadata, readable, write_tensors

FORMAT, VERSION = "genrec-hash-set", "1"
BLOCK = 64  # lookups whose memory reads overlap
RANGE_BITS = 16  # a thread fills 65 536 slots at a time: they fit its cache
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
        for name in ("keys", "leaves"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @classmethod
    def build(cls, keys: npt.ArrayLike, threads: int = 0) -> SemanticIdSet:
        """From distinct semantic IDs int64[P]: key i answers i. InputError on a duplicate. 0 threads: all cores."""
        given = _int64(keys)
        if given.ndim != 1 or len(given) >= 2**30:
            raise InputError("semantic_ids", f"has shape {list(given.shape)}", "one axis, below 2**30")
        capacity = 1 << max(int(len(given) / MAX_LOAD), 1).bit_length()
        table, leaves = np.zeros(capacity, np.int64), np.full(capacity, -1, np.int32)
        duplicate = _fill_in_parallel(given, table, leaves, threads or usable_cores())
        if duplicate >= 0:
            raise InputError("semantic_ids", f"has {given[duplicate]} twice", "distinct semantic IDs")
        return cls(table, leaves)

    def find(self, keys: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """int64[...] -> int32[...] of the same shape: the key's position, or -1. Any int64 may be asked."""
        given = _int64(keys)
        found = np.empty(given.size, np.int32)
        _find(given.reshape(-1), self.keys, self.leaves, found)
        return found.reshape(given.shape)

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        tensors: dict[str, npt.NDArray[Any]] = {"keys": self.keys, "leaves": self.leaves}
        write_tensors(path, tensors, {"format": FORMAT, "version": VERSION})

    @classmethod
    def map(cls, path: Path) -> SemanticIdSet:
        """What `save` wrote, mapped: however many processes of a machine map it, its pages are there once.

        Raises ArtifactError. A table that is not a catalogue's answers wrongly, but reads nothing outside itself.
        """
        with readable(path, "hash set"):
            read_metadata(path, FORMAT, VERSION)  # sizes and offsets are checked too
            tensors = mapped_tensors(path, "r")
            return cls(tensors["keys"], tensors["leaves"])

    def __len__(self) -> int:
        """Number of keys."""
        return int(np.count_nonzero(self.leaves >= 0))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.keys.nbytes + self.leaves.nbytes


def _fill_in_parallel(
    keys: npt.NDArray[np.int64], table: npt.NDArray[np.int64], leaves: npt.NDArray[np.int32], threads: int
) -> int:
    """Keys are grouped by range of slots, ranges are filled side by side, and the few keys that run over the
    end of theirs follow. The position of a duplicate, or -1.
    """
    count = len(keys)
    starts = np.zeros(-(-len(table) >> RANGE_BITS) + 1, np.int64)
    grouped, places = np.empty(count, np.int64), np.empty(count, np.int32)
    _group(keys, len(table) - 1, starts, grouped, places)
    threads = min(threads, len(starts) - 1)
    shares = np.array_split(np.arange(len(starts) - 1), threads)
    # Hardly touched, so these reserve addresses, not memory.
    spilled = [np.empty(count, np.int32) for _ in shares]

    def fill(share: npt.NDArray[np.int64], over: npt.NDArray[np.int32]) -> Any:
        return _fill(grouped, places, starts, share, table, leaves, over)

    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(fill, shares, spilled))
    duplicate = max(found for found, _ in done)
    over = np.concatenate([part[:n] for part, (_, n) in zip(spilled, done, strict=True)])
    return duplicate if duplicate >= 0 else int(_fill_spilled(grouped, places, table, leaves, over))


def _int64(keys: npt.ArrayLike) -> npt.NDArray[np.int64]:
    given = np.asarray(keys)
    if given.size and not np.can_cast(given.dtype, np.int64):  # uint64 would wrap onto other keys
        raise InputError("semantic_ids", f"is of type {given.dtype}", "int64")
    return frozen(given, np.int64).reshape(given.shape)


@njit(cache=True, nogil=True)
def _slot(key: int, mask: int) -> np.int64:
    """Where to begin: the finaliser of splitmix64. Packed IDs differ in few digits; it spreads every bit."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) & np.uint64(mask))


@njit(cache=True, nogil=True)
def _group(
    keys: npt.NDArray[Any],
    mask: int,
    starts: npt.NDArray[Any],
    grouped: npt.NDArray[Any],
    places: npt.NDArray[Any],
) -> None:
    """Sort keys int64[P] by the range their slot is in: grouped int64[P], places int32[P] where they came from.

    starts int64[ranges + 1], zeros, becomes where each range's keys begin.
    """
    for i in range(len(keys)):
        starts[(_slot(keys[i], mask) >> RANGE_BITS) + 1] += 1
    for r in range(1, len(starts)):
        starts[r] += starts[r - 1]
    following = starts[:-1].copy()
    for i in range(len(keys)):
        at = _slot(keys[i], mask) >> RANGE_BITS
        grouped[following[at]] = keys[i]
        places[following[at]] = i
        following[at] += 1


@njit(cache=True, nogil=True)
def _fill(
    keys: npt.NDArray[Any], places: npt.NDArray[Any], starts: npt.NDArray[Any], ranges: npt.NDArray[Any],
    table: npt.NDArray[Any], leaves: npt.NDArray[Any], spilled: npt.NDArray[Any],
) -> tuple[int, int]:  # fmt: skip
    """Put in the grouped keys of `ranges` int64[any], writing nowhere else, so threads may share a table.

    A key that runs over the end of its range is left in `spilled` int32[P] (its index); the range stays full
    from there on, so its duplicate runs over as well. Returns (place of a duplicate or -1, number spilled).
    """
    mask = len(table) - 1
    over = 0
    for r in ranges:
        end = min((r + 1) << RANGE_BITS, len(table))
        for i in range(starts[r], starts[r + 1]):
            slot = _slot(keys[i], mask)
            while slot < end and leaves[slot] >= 0:
                if table[slot] == keys[i]:
                    return places[i], over
                slot += 1
            if slot == end:
                spilled[over] = i
                over += 1
            else:
                table[slot] = keys[i]
                leaves[slot] = places[i]
    return -1, over


@njit(cache=True, nogil=True)
def _fill_spilled(
    keys: npt.NDArray[Any], places: npt.NDArray[Any], table: npt.NDArray[Any], leaves: npt.NDArray[Any],
    spilled: npt.NDArray[Any],
) -> int:  # fmt: skip
    """Put keys[spilled] in wherever there is room, round the end; the place of a duplicate, or -1."""
    mask = len(table) - 1
    for i in spilled:
        slot = _slot(keys[i], mask)
        while leaves[slot] >= 0:
            if table[slot] == keys[i]:
                return places[i]
            slot = (slot + 1) & mask
        table[slot] = keys[i]
        leaves[slot] = places[i]
    return -1


@njit(cache=True, nogil=True)
def _find(
    keys: npt.NDArray[Any], table: npt.NDArray[Any], leaves: npt.NDArray[Any], found: npt.NDArray[Any]
) -> None:
    """keys int64[n] -> found int32[n]. Probes at most every slot once, even in a table without a gap.

    Slots are computed and read a block ahead: the reads of a block miss the cache together, not in turn.
    """
    mask = len(table) - 1
    slots = np.empty(BLOCK, np.int64)
    at = np.empty(BLOCK, np.int64)
    held = np.empty(BLOCK, np.int32)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        for j in range(count):
            slots[j] = _slot(keys[start + j], mask)
        for j in range(count):
            at[j] = table[slots[j]]
            held[j] = leaves[slots[j]]
        for j in range(count):
            key, slot, leaf, stored = keys[start + j], slots[j], held[j], at[j]
            for _ in range(len(table)):
                if leaf < 0 or stored == key:
                    break
                slot = (slot + 1) & mask
                leaf, stored = leaves[slot], table[slot]
            found[start + j] = leaf if leaf >= 0 and stored == key else -1
