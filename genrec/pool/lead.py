"""What lies before an entry's KV: whose it is and the hashes of all its boundaries, with a checksum.

It is read at every find: if the index or the table points to something else, that is not believed. The index knows one
boundary in `EVERY`, as each place of it is a wait for memory; how far a history agrees beyond that, the hashes say,
which lie side by side. Compiled, as each call of NumPy takes longer than all of this when caches are cold.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.kv.layout import LINE, aligned
from genrec.pool import index
from genrec.pool.index import Places
from genrec.pool.keys import Words
from genrec.pool.mapping import EVERY, MAGIC, POOL
from genrec.pool.memory import Bytes
from genrec.pool.user_rows import (
    BOUNDARIES,
    EXPIRES,
    GENERATION,
    HEADER_BYTES,
    KEY,
    KEY_2,
    OWNER,
    PAYLOAD,
    READY,
    SPAN,
    START,
    STATE,
    WIPE,
    Numbers,
    Rows,
)

TRUE, FOREIGN, EXPIRED, TORN = range(4)  # what an answer of the index turns out to be
ENTRY = 0xFFFFFFFF  # an answer of the index: boundary << 32 | entry
CHECKSUM, FIRST_HASH = 7, 8  # words of a lead
MOST_ALIKE = 64  # entries of an owner that are looked at as one leaves: all who say no name have one owner


def bytes_of(boundaries: int) -> int:
    """Bytes of a lead with so many hashes."""
    return HEADER_BYTES + aligned(16 * boundaries)


@njit(cache=True, nogil=True)
def write(pool: Numbers, users: Bytes, rows: Rows, entry: int, hashes: Words) -> bool:
    """The lead of an entry whose row is whole, `pool` being the table's header. False: the row points elsewhere."""
    row = rows[entry]
    start, size = row[START], HEADER_BYTES + 16 * len(hashes)
    if not _inside(users, start, size):
        return False
    words = users[start : start + size].view(np.int64)
    for place in range(CHECKSUM):
        words[place] = _said(pool, row, np.int64(entry), place)
    for boundary in range(len(hashes)):
        words[FIRST_HASH + 2 * boundary] = np.int64(hashes[boundary, 0])
        words[FIRST_HASH + 2 * boundary + 1] = np.int64(hashes[boundary, 1])
    words[CHECKSUM] = _checksum(words)
    return True


@njit(cache=True, nogil=True, inline="always")
def _indexed(boundary: int, last: int) -> bool:
    """Whether the index knows this boundary of an entry: the last one too, and powers of two, for short ones."""
    return boundary % EVERY == 0 or boundary == last or boundary & (boundary - 1) == 0


@njit(cache=True, nogil=True, inline="always")
def _highest(last: int) -> int:
    """The last boundary <= `last` that the index has for every longer entry too."""
    highest = last - last % EVERY if last >= EVERY else last
    while not _indexed(highest, 0):
        highest -= 1
    return highest


@njit(cache=True, nogil=True)
def enter(rows: Rows, places: Places, entry: int, hashes: Words) -> Numbers:
    """From now on the index answers `entry` at its boundaries. Other READY entries that end at one of them before its
    own last, as far as the index knew them: what they hold it holds too.

    Places that it shares with another which stays longer it leaves to that: on a lease, it goes soon if nobody uses it.
    """
    last, ends = len(hashes) - 1, rows[entry, EXPIRES]
    held, count = np.empty(len(hashes), np.int64), 0
    for boundary in range(1, last + 1):
        if not _indexed(boundary, last):
            continue
        other = _ready_at(rows, places, hashes, boundary)
        if other < 0:
            continue
        row = rows[other]
        end = row[BOUNDARIES] - 1
        # Another entry is met at several: it counts at the highest of them.
        if end >= last or boundary != _highest(end):
            continue
        if row[KEY] == np.int64(hashes[end, 0]) and row[KEY_2] == np.int64(hashes[end, 1]):
            held[count] = other
            count += 1
    for boundary in range(1, last + 1):
        if not _indexed(boundary, last):
            continue
        other = _ready_at(rows, places, hashes, boundary) if boundary < last else np.int64(-1)
        if other >= 0 and rows[other, EXPIRES] > ends and other not in held[:count]:
            continue
        first, second = hashes[boundary]
        index.put_one(places, first, second, np.int64(boundary) << 32 | np.int64(entry))
    return held[:count]


@njit(cache=True, nogil=True)
def _ready_at(rows: Rows, places: Places, hashes: Words, boundary: int) -> np.int64:
    """The READY entry that the index answers at a boundary, or -1."""
    answer = index.find_one(places, hashes[boundary, 0], hashes[boundary, 1])
    entry = answer & ENTRY
    if answer < 0 or answer >> 32 != boundary or entry >= len(rows) or rows[entry, STATE] != READY:
        return np.int64(-1)
    return entry


@njit(cache=True, nogil=True)
def enter_used(users: Bytes, rows: Rows, places: Places, entry: int) -> None:
    """`enter` one that has a lead and is no longer on a lease."""
    enter(rows, places, entry, _hashes(users, rows[entry]))


@njit(cache=True, nogil=True)
def withdraw(users: Bytes, rows: Rows, places: Places, entry: int, others: Numbers) -> None:
    """The index forgets what it answers with this entry, by the hashes in its lead: at those that `others`, READY
    entries int64[any], of its owner have too, it answers the one of these that stays longest.
    """
    row = rows[entry]
    if not _inside(users, row[START], HEADER_BYTES + 16 * row[BOUNDARIES]):
        return  # what the index still says of it is not believed
    hashes, freed = _hashes(users, row), 0
    for boundary in range(1, len(hashes)):
        if _indexed(boundary, len(hashes) - 1):
            first, second = hashes[boundary]
            if index.remove_one(places, first, second, np.int64(boundary) << 32 | np.int64(entry)):
                freed = boundary
    looked = 0 if freed else MOST_ALIKE
    for other in others:
        if looked == MOST_ALIKE:
            break
        if rows[other, OWNER] == row[OWNER] and not rows[other, WIPE]:
            _share(users, rows, places, other, hashes[: freed + 1])
            looked += 1


@njit(cache=True, nogil=True)
def _share(users: Bytes, rows: Rows, places: Places, entry: np.int64, hashes: Words) -> None:
    """The index answers `entry` at those of these boundaries that are its own, unless another stays longer."""
    row = rows[entry]
    if not _inside(users, row[START], HEADER_BYTES + 16 * row[BOUNDARIES]):
        return
    mine = _hashes(users, row)
    for boundary in range(1, min(len(mine), len(hashes))):
        first, second = hashes[boundary]
        if mine[boundary, 0] != first or mine[boundary, 1] != second:
            return
        if _indexed(boundary, len(mine) - 1):
            other = _ready_at(rows, places, hashes, boundary)
            if other < 0 or rows[other, EXPIRES] < row[EXPIRES]:
                index.put_one(places, first, second, np.int64(boundary) << 32 | entry)


@njit(cache=True, nogil=True, inline="always")
def _hashes(users: Bytes, row: Numbers) -> Words:
    """Those in an entry's lead: uint64[boundaries, 2]."""
    start, count = row[START] + 8 * FIRST_HASH, row[BOUNDARIES]
    return users[start : start + 16 * count].view(np.uint64).reshape((count, 2))


@njit(cache=True, nogil=True)
def find(
    pool: Numbers, users: Bytes, rows: Rows, places: Places, hashes: Words, now: int
) -> tuple[np.int64, np.int64, np.int64]:
    """(boundary, the index's answer, what it is): the longest agreement that the index knows of; boundary 0: none.

    Where it is TRUE the boundary is the last at which that entry agrees, else the one that the index answered at.
    """
    last = len(hashes) - 1
    for boundary in range(last, 0, -1):
        if not _indexed(boundary, last):
            continue
        answer = index.find_one(places, hashes[boundary, 0], hashes[boundary, 1])
        if answer < 0:
            continue
        if answer >> 32 != boundary:
            return np.int64(boundary), answer, np.int64(FOREIGN)
        entry = np.int64(answer & ENTRY)
        judged = _judged(pool, users, rows, entry, hashes, np.int64(boundary), now)
        agreed = _agreed(users, rows[entry], hashes, boundary) if judged == TRUE else boundary
        return np.int64(agreed), answer, np.int64(judged)
    return np.int64(0), np.int64(-1), np.int64(FOREIGN)


@njit(cache=True, nogil=True)
def _agreed(users: Bytes, row: Numbers, hashes: Words, boundary: int) -> int:
    """The last boundary at which an entry agrees that agrees at this one: its hashes are over all before them."""
    start = row[START]
    words = users[start : start + HEADER_BYTES + 16 * row[BOUNDARIES]].view(np.uint64)
    while boundary + 1 < min(len(hashes), row[BOUNDARIES]):
        key = FIRST_HASH + 2 * (boundary + 1)
        if words[key] != hashes[boundary + 1, 0] or words[key + 1] != hashes[boundary + 1, 1]:
            break
        boundary += 1
    return boundary


@njit(cache=True, nogil=True)
def _judged(
    pool: Numbers, users: Bytes, rows: Rows, entry: np.int64, hashes: Words, boundary: np.int64, now: int
) -> int:  # fmt: skip
    """Whether it is a living entry whose lead is whole and has this key there."""
    if entry >= len(rows) or rows[entry, STATE] != READY or rows[entry, BOUNDARIES] <= boundary:
        return FOREIGN
    row = rows[entry]
    if row[EXPIRES] <= now:
        return EXPIRED
    start, size = row[START], HEADER_BYTES + 16 * row[BOUNDARIES]
    if not _inside(users, start, size):
        return TORN
    words = users[start : start + size].view(np.int64)
    if words[CHECKSUM] != _checksum(words):
        return TORN
    for place in range(CHECKSUM):
        if words[place] != _said(pool, row, entry, place):
            return TORN
    key = FIRST_HASH + 2 * boundary
    same = words[key] == np.int64(hashes[boundary, 0]) and words[key + 1] == np.int64(hashes[boundary, 1])
    return TRUE if same else FOREIGN


@njit(cache=True, nogil=True)
def _inside(users: Bytes, start: int, size: int) -> bool:
    return start >= 0 and start % LINE == 0 and size <= len(users) - start


@njit(cache=True, nogil=True, inline="always")
def _said(pool: Numbers, row: Numbers, entry: np.int64, place: int) -> np.int64:
    """A word of the header by what the table says."""
    if place == 0:
        return np.int64(MAGIC)
    if place == 1:
        return pool[POOL]
    if place == 2:
        return np.int64(entry)
    return row[(GENERATION, SPAN, PAYLOAD, BOUNDARIES)[place - 3]]


@njit(cache=True, nogil=True)
def _checksum(words: NDArray[np.int64]) -> np.int64:
    """Of all words of a lead but its own: multiplied by a large odd number and folded, one after the other."""
    found = np.uint64(0)
    for place in range(len(words)):
        if place != CHECKSUM:
            found = (found ^ np.uint64(words[place])) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(32)
    return np.int64(found)
