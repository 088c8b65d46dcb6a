"""Which key is where: a hash table of two buckets per key in memory that several processes map.

A key has eight places in each of two buckets (two-choice hashing), so there are no chains, no tombstones and nothing
is ever moved: every change is one place, and a process killed in the middle leaves at worst a place that points to
something else. Who reads an answer therefore compares the key with the one that is kept there. At half full a bucket
practically never overflows; where both do, a key takes another's place, as in any cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool.keys import Words

WAYS = 8  # places in a bucket
# [slots, 3]: the key's two words, and what it answers plus 1 (0: the place is free)
Places = NDArray[np.uint64]


def slots_for(keys: int) -> int:
    """Places for so many keys: a power of two, at most half of them taken."""
    return max(8 * WAYS, 1 << (2 * max(keys, 1) - 1).bit_length())


@njit(cache=True, nogil=True)
def _place(index: Places, first: np.uint64, second: np.uint64) -> np.int64:
    """Where the key is, or -1."""
    buckets = np.uint64(len(index) // WAYS - 1)
    for word in (first, second):
        start = np.int64(word & buckets) * WAYS
        for place in range(start, start + WAYS):
            if index[place, 0] == first and index[place, 1] == second and index[place, 2] != 0:
                return np.int64(place)
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _room(index: Places, first: np.uint64, second: np.uint64) -> np.int64:
    """A free place of the emptier bucket; where there is none, one that is another's."""
    buckets = np.uint64(len(index) // WAYS - 1)
    best, most = -1, 0
    for word in (first, second):
        start = np.int64(word & buckets) * WAYS
        free, seen = -1, 0
        for place in range(start, start + WAYS):
            if index[place, 2] == 0:
                free, seen = place, seen + 1
        if seen > most:
            best, most = free, seen
    if best >= 0:
        return np.int64(best)
    return np.int64(first & buckets) * WAYS + np.int64(second >> np.uint64(61))


@njit(cache=True, nogil=True)
def find(index: Places, keys: Words) -> NDArray[np.int64]:
    """int64[n]: what each key answers, or -1."""
    answers = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        answers[i] = find_one(index, keys[i, 0], keys[i, 1])
    return answers


@njit(cache=True, nogil=True)
def find_one(index: Places, first: np.uint64, second: np.uint64) -> np.int64:
    """What the key answers, or -1."""
    place = _place(index, first, second)
    return np.int64(index[place, 2]) - 1 if place >= 0 else np.int64(-1)


@njit(cache=True, nogil=True)
def find_last(index: Places, keys: Words, below: int) -> tuple[int, np.int64]:
    """The last of the first `below` keys that is there, and what it answers; (-1, -1) where none is."""
    for i in range(below - 1, -1, -1):
        place = _place(index, keys[i, 0], keys[i, 1])
        if place >= 0:
            return i, np.int64(index[place, 2]) - 1
    return -1, np.int64(-1)


@njit(cache=True, nogil=True)
def put_one(index: Places, first: np.uint64, second: np.uint64, answer: np.int64) -> np.int64:
    """The key answers this from now on; what it answered before, or -1."""
    place, before = _place(index, first, second), np.int64(-1)
    if place < 0:
        place = _room(index, first, second)
        index[place, 2] = 0  # while the key is half another's, the place is free
        index[place, 0] = first
        index[place, 1] = second
    else:
        before = np.int64(index[place, 2]) - 1
    index[place, 2] = np.uint64(answer + 1)
    return before


@njit(cache=True, nogil=True)
def put(index: Places, keys: Words, answers: NDArray[np.int64]) -> None:
    """Each key answers this from now on."""
    for i in range(len(keys)):
        put_one(index, keys[i, 0], keys[i, 1], answers[i])


@njit(cache=True, nogil=True)
def remove_one(index: Places, first: np.uint64, second: np.uint64, answer: np.int64) -> bool:
    """Forget the key if it still answers this; whether it did."""
    place = _place(index, first, second)
    if place < 0 or index[place, 2] != np.uint64(answer + 1):
        return False
    index[place, 2] = 0
    return True


@njit(cache=True, nogil=True)
def remove(index: Places, keys: Words, answers: NDArray[np.int64]) -> None:
    """Forget each key where it still answers this."""
    for i in range(len(keys)):
        remove_one(index, keys[i, 0], keys[i, 1], answers[i])
