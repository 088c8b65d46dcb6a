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

import numpy as np
from numpy.typing import NDArray

from genrec.kv.layout import LINE, aligned
from genrec.pool import index, lead, space, user_rows
from genrec.pool.keys import Words
from genrec.pool.leaving import free, leave
from genrec.pool.mapping import (
    COUNTER,
    EVER,
    EVICTIONS,
    USER_BYTES,
    Bytes,
    PoolTable,
)
from genrec.pool.rule import Room, Rule, Standing
from genrec.pool.user_rows import (
    EXPIRES,
    GENERATION,
    LIVES,
    READY,
    SIZE,
    START,
    STATE,
    WIPE,
    WRITER,
    WRITING,
    ever_used,
    used_entries,
)

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
    span: int,
    size: int,
    owner: Words,
    seat: int,
    lives: tuple[int, int],
    rule: Rule,
) -> int:
    """An entry in state WRITING with room for `size` bytes that lives from `lives[0]` to `lives[1]` (ns), or -1.

    -1: there is no room, or somebody has or computes the same.
    """
    rows, total = ever_used(table), lead.bytes_of(len(hashes)) + aligned(size)
    if user_rows.known(rows, *hashes[-1].view(np.int64).tolist()):
        return -1
    used = user_rows.used(rows)
    worth = _worth(table, used, lives[0], rule)
    found = space.place(rows[used, START], rows[used, SIZE], worth, total, _capacity(table))
    if found is None:
        return -1
    least = found[1]
    if len(used) == len(table.entries) and not len(least):  # no row of the table is free: one has to be
        least = np.argmin(worth, keepdims=True)
        if worth[least[0]] == np.inf:
            return -1
    for at in least:
        rule.evicted(float(worth[at]))
        leave(table, users, int(used[at]))
    table.header[EVICTIONS] += len(least)
    rows = table.entries
    entry = user_rows.first_free(rows[: table.header[EVER] + 1])
    table.header[EVER] = max(table.header[EVER], entry + 1)
    table.header[COUNTER] += 1
    rows[entry, GENERATION : LIVES + 1] = (
        table.header[COUNTER], found[0], total, seat, len(hashes), span, size, lives[1], lives[0], 0,
        *owner.view(np.int64).ravel(), *hashes[-1].view(np.int64), 0, lives[1],
    )  # fmt: skip
    rows[entry, STATE] = WRITING
    return entry


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


def publish(table: PoolTable, users: Bytes, entry: int, hashes: Words, until: int) -> None:
    """WRITING to READY: what it holds can be found, and entries that hold only a part of it leave.

    It leaves at `until` (ns) if nobody has used it, and at the end of its life in any case.
    """
    row = table.entries[entry]
    row[EXPIRES] = min(until, int(row[LIVES]))
    if row[WIPE]:  # its owner was forgotten meanwhile
        return free(table, users, entry)
    if not lead.write(table.header, users, table.entries, entry, hashes):
        raise ValueError("an entry outside its memory")
    row[STATE] = READY
    for held in lead.enter(table.entries, table.user_index, entry, hashes).tolist():
        leave(table, users, held)


def find(table: PoolTable, users: Bytes, hashes: Words, now: int) -> tuple[int, int]:
    """(entry, boundary): the longest agreement with what is READY, or (-1, 0)."""
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
            leave(table, users, entry)
        index.remove(table.user_index, hashes[boundary : boundary + 1], np.array([answer]))


def is_writing(table: PoolTable, entry: int, generation: int, seat: int) -> bool:
    """Whether this process still writes that very entry."""
    row = table.entries[entry]
    return bool(row[STATE] == WRITING and row[GENERATION] == generation and row[WRITER] == seat)


def _capacity(table: PoolTable) -> int:
    return int(table.header[USER_BYTES]) // LINE * LINE
