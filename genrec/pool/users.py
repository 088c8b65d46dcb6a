"""Entries of users: contiguous KV of one history each, in one memory.

An entry is FREE, WRITING while a process computes it, READY, or LEAVING: not found any more, but somebody still reads
it. STATE is the last word written. It leaves at EXPIRES; one on a lease, made before anybody asked for it,
has until LIVES once it is used. Its bytes begin with a header and the hashes of all its boundaries, checked at every
find: if the index or the table points to something else, that is dropped and not believed.

The functions here work on a table that is locked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.kv.layout import LINE, aligned
from genrec.pool import index, lead, leaving, space, user_rows
from genrec.pool.index import Places
from genrec.pool.keys import Words, words
from genrec.pool.mapping import (
    COUNTER,
    EVER,
    EVICTIONS,
    PROCESSES,
    USER_BYTES,
    PoolTable,
)
from genrec.pool.memory import Bytes
from genrec.pool.rule import Room, Rule, Standing
from genrec.pool.user_rows import (
    BOUNDARIES,
    EXPIRES,
    GENERATION,
    KEY,
    KEY_2,
    LIVES,
    OWNER,
    OWNER_2,
    PAYLOAD,
    READY,
    SEEN,
    SIZE,
    SPAN,
    START,
    STATE,
    USES,
    WIPE,
    WRITER,
    WRITING,
    Numbers,
    Pins,
    Rows,
    used_entries,
)

NOBODY = np.zeros(PROCESSES, np.bool_)  # is dead
log = logging.getLogger("genrec.pool")


@dataclass(frozen=True)
class UserEntry:
    """KV found for a user, kept in place until `release`: the first `tokens` of `span` tokens agree.

    memory  uint8[size], read-only, as it was written
    """

    memory: Bytes
    tokens: int
    span: int
    entry: int
    generation: int


class Wanted(NamedTuple):
    """Room for a new entry: see `Pool.write_user`."""

    span: int
    size: int
    owner: bytes
    came_ns: int | None = None
    lives_s: float = inf


@dataclass(frozen=True)
class Writing:
    """Room for a new entry that nobody sees yet: fill `memory` uint8[size], then `commit` or `abandon` it."""

    memory: Bytes
    hashes: Words
    entry: int
    generation: int


def take(
    table: PoolTable,
    users: Bytes,
    hashes: Words,
    wanted: Wanted,
    seat: int,
    lives: tuple[int, int],
    rule: Rule,
) -> int:
    """An entry in state WRITING with what is `wanted` that lives from `lives[0]` to `lives[1]` (ns), or -1.

    -1: there is no room, or somebody has or computes the same.
    """
    first, second = hashes[-1].view(np.int64).tolist()
    arrays = table.entries, table.pins, table.user_index
    known, used, (may, age, spans, owners) = survey(table.header, users, *arrays, first, second, lives[0])
    if known:
        return -1
    worth = rule.worth(Standing(lives[0], age, spans, owners))
    whose, size = words([wanted.owner]).view(np.int64).ravel().tolist(), wanted.size
    said = (seat, len(hashes), wanted.span, size, lives[1], lives[0], *whose, first, second)
    total = lead.bytes_of(len(hashes)) + aligned(size)
    entry, left = settle(table.header, users, *arrays, used, may, worth, total, _capacity(table), said)
    for each in left.tolist():
        rule.evicted(each)
    return int(entry)


@njit(cache=True, nogil=True)
def survey(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, key: int, key_2: int, now: int
) -> tuple[bool, Numbers, tuple[Numbers, NDArray[np.float64], Numbers, NDArray[np.uint64]]]:  # fmt: skip
    """`leaving.drop`, then `user_rows.survey`: in one call."""
    leaving.drop(header, users, rows, pins, places, NOBODY, now)
    return user_rows.survey(rows[: header[EVER]], pins, key, key_2, now)


@njit(cache=True, nogil=True)
def settle(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, used: Numbers, may: Numbers,
    worth: NDArray[np.float64], total: int, capacity: int, said: tuple[int, ...],
) -> tuple[int, NDArray[np.float64]]:  # fmt: skip
    """A place of `total` bytes among the entries `used` int64[n], of which the numbers `may` int64[m] may leave, worth
    float64[m]: (its entry or -1, what was worth each that had to leave).
    """
    value = np.full(len(used), np.inf)
    starts, sizes = np.empty(len(used), np.int64), np.empty(len(used), np.int64)
    for i in range(len(may)):
        value[may[i]] = worth[i]
    for i in range(len(used)):
        starts[i], sizes[i] = rows[used[i], START], rows[used[i], SIZE]
    offset, least = space.find_place(starts, sizes, value, total, capacity)
    # No row of the table is free: one has to be.
    if offset >= 0 and len(used) == len(rows) and not len(least):
        least = np.array([np.argmin(value)])
    if offset < 0 or (len(least) and value[least[0]] == np.inf):
        return -1, value[:0]
    for i in range(len(least)):
        leaving.end(header, users, rows, pins, places, used[least[i]])
    header[EVICTIONS] += len(least)
    entry = user_rows.first_free(rows[: header[EVER] + 1])
    if entry < 0:
        return -1, value[least]
    header[EVER] = max(header[EVER], entry + 1)
    header[COUNTER] += 1
    row = rows[entry]
    seat, boundaries, span, size, ends, now, owner, owner_2, key, key_2 = said
    row[GENERATION], row[START], row[SIZE], row[WRITER] = header[COUNTER], offset, total, seat
    row[BOUNDARIES], row[SPAN], row[PAYLOAD], row[EXPIRES] = boundaries, span, size, ends
    row[SEEN], row[USES], row[OWNER], row[OWNER_2] = now, 0, owner, owner_2
    row[KEY], row[KEY_2], row[WIPE], row[LIVES] = key, key_2, 0, ends
    row[STATE] = WRITING
    return entry, value[least]


def room(table: PoolTable, boundaries: int, size: int, now: int, rule: Rule) -> Room:
    """What an entry of so many bytes would find."""
    used = used_entries(table)
    rows, total = table.entries[used], lead.bytes_of(boundaries) + aligned(size)
    found = space.place(rows[:, START], rows[:, SIZE], np.full(len(used), np.inf), total, _capacity(table))
    worth = _worth(table, used, now, rule)
    return Room(found is not None, float(worth.min(initial=np.inf)))


def _worth(table: PoolTable, used: NDArray[np.int64], now: int, rule: Rule) -> NDArray[np.float64]:
    """float64 per used entry; infinite for what is being written or read."""
    worth = np.full(len(used), np.inf)
    may, age, spans, owners = user_rows.standing(table.entries, table.pins, used, now)
    worth[may] = rule.worth(Standing(now, age, spans, owners))
    return worth


def publish(table: PoolTable, users: Bytes, writing: Writing, seat: int, until: int) -> None:
    """WRITING to READY, if this process still writes that very entry: what it holds can be found, and entries that hold
    only a part of it leave.

    It leaves at `until` (ns) if nobody has used it, and at the end of its life in any case.
    """
    arrays = table.entries, table.pins, table.user_index
    whole = show(table.header, users, *arrays, writing.entry, writing.generation, seat, writing.hashes, until)
    if not whole:
        raise ValueError("an entry outside its memory")


@njit(cache=True, nogil=True)
def show(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, entry: int, generation: int, seat: int,
    hashes: Words, until: int,
) -> bool:  # fmt: skip
    """`publish` on the arrays of a table; whether the row is whole."""
    row = rows[entry]
    if not (row[STATE] == WRITING and row[GENERATION] == generation and row[WRITER] == seat):
        return True
    row[EXPIRES] = min(until, row[LIVES])
    if row[WIPE]:  # its owner was forgotten meanwhile
        leaving.vacate(users, rows, places, entry)
        return True
    if not lead.write(header, users, rows, entry, hashes):
        return False
    row[STATE] = READY
    held = lead.enter(rows, places, entry, hashes)
    for i in range(len(held)):
        leaving.end(header, users, rows, pins, places, held[i])
    return True


def find(table: PoolTable, users: Bytes, hashes: Words, now: int) -> tuple[int, int]:
    """(entry, boundary): the longest agreement with what is READY, or (-1, 0).

    Of entries that part within `EVERY` boundaries it is the newest, unless the history ends where another does.
    """
    while True:
        boundary, answer, judged = lead.find(
            table.header, users, table.entries, table.user_index, hashes, now
        )
        if not boundary:
            return -1, 0
        entry = int(answer) & lead.ENTRY
        if judged == lead.TRUE:
            return entry, int(boundary)
        if judged == lead.TORN:
            log.warning("kv pool: entry %d is torn or another pool's; dropped", entry)
        if judged != lead.FOREIGN:
            leaving.leave(table, users, entry)
        index.remove(table.user_index, hashes[boundary : boundary + 1], np.array([answer]))


def is_writing(table: PoolTable, entry: int, generation: int, seat: int) -> bool:
    """Whether this process still writes that very entry."""
    row = table.entries[entry]
    return bool(row[STATE] == WRITING and row[GENERATION] == generation and row[WRITER] == seat)


def _capacity(table: PoolTable) -> int:
    return int(table.header[USER_BYTES]) // LINE * LINE
