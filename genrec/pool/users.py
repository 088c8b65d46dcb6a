"""Entries of users: contiguous KV of one history each, in one memory.

An entry is FREE, WRITING while a process computes it, READY, or LEAVING: not found any more, but somebody still reads
it. STATE is the last word written. It leaves at EXPIRES; one on a lease, made before anybody asked for it,
has until LIVES once it is used. Its bytes begin with a header and the hashes of all its boundaries, checked at every
find: if the index or the table points to something else, that is dropped and not believed.

The functions here work on a table that is locked.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genrec.pool import index, space, user_rows
from genrec.pool.keys import Words
from genrec.pool.leaving import free, leave
from genrec.pool.mapping import (
    COUNTER,
    EVER,
    EVICTIONS,
    LEASES_USED,
    MAGIC,
    POOL,
    USER_BYTES,
    Bytes,
    PoolTable,
)
from genrec.pool.rule import Room, Rule, Standing
from genrec.pool.user_rows import (
    BOUNDARIES,
    EXPIRES,
    GENERATION,
    HEADER_BYTES,
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
    answers,
    ever_used,
    used_entries,
)

log = logging.getLogger("genrec.pool")
ENTRY = 0xFFFFFFFF  # an answer of the index: boundary << 32 | entry


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


def lead(boundaries: int) -> int:
    """Bytes before an entry's payload: the header and so many hashes."""
    return HEADER_BYTES + space.aligned(16 * boundaries)


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
    rows, total = ever_used(table), lead(len(hashes)) + space.aligned(size)
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
    rows, total = table.entries[used], lead(boundaries) + space.aligned(size)
    found = space.place(rows[:, START], rows[:, SIZE], np.full(len(used), np.inf), total, _capacity(table))
    worth = _worth(table, used, now, rule)
    return Room(found is not None, float(worth.min(initial=np.inf)))


def _worth(table: PoolTable, used: NDArray[np.int64], now: int, rule: Rule) -> NDArray[np.float64]:
    """float64 per used entry; infinite for what is being written or read."""
    worth = np.full(len(used), np.inf)
    may = user_rows.unread(table.entries, table.pins, used)
    rows = table.entries[used[may]]
    worth[may] = rule.worth(
        Standing(
            now,
            (now - rows[:, SEEN]) / 1e9,
            rows[:, SPAN],
            np.ascontiguousarray(rows[:, OWNER : OWNER_2 + 1]).view(np.uint64),
        )
    )
    return worth


def publish(table: PoolTable, users: Bytes, entry: int, hashes: Words, until: int) -> None:
    """WRITING to READY: what it holds can be found, and entries that hold only a part of it leave.

    It leaves at `until` (ns) if nobody has used it, and at the end of its life in any case.
    """
    row = table.entries[entry]
    row[EXPIRES] = min(until, int(row[LIVES]))
    if row[WIPE]:  # its owner was forgotten meanwhile
        return free(table, users, entry)
    before = index.find(table.user_index, hashes[1:-1])
    memory = users[row[START] :][: lead(len(hashes))]
    memory[HEADER_BYTES : HEADER_BYTES + 16 * len(hashes)] = hashes.view(np.uint8).ravel()
    header = memory[:HEADER_BYTES].view(np.int64)
    header[:7] = _header(table, entry)
    header[7] = _checksum(memory, len(hashes))
    row[STATE] = READY
    index.put(table.user_index, hashes[1:], answers(entry, len(hashes)))
    for boundary, answer in enumerate(before.tolist(), 1):
        if answer >> 32 == boundary and _ends_with(table, answer & ENTRY, hashes[boundary]):
            leave(table, users, answer & ENTRY)


def _ends_with(table: PoolTable, entry: int, key: Words) -> bool:
    row = table.entries[entry]
    return bool(row[STATE] == READY and (row[[KEY, KEY_2]] == key.view(np.int64)).all())


def find(table: PoolTable, users: Bytes, hashes: Words, now: int) -> tuple[int, int]:
    """(entry, boundary): the longest agreement with what is READY, or (-1, 0)."""
    boundary = len(hashes)
    while boundary > 1:
        at, answer = index.find_last(table.user_index, hashes[1:], boundary - 1)
        if at < 0:
            break
        boundary, entry = at + 1, int(answer) & ENTRY
        if answer >> 32 == boundary and _believed(table, users, entry, hashes[boundary], boundary, now):
            return entry, boundary
        index.remove(table.user_index, hashes[boundary : boundary + 1], np.array([answer]))
    return -1, 0


def _believed(table: PoolTable, users: Bytes, entry: int, key: Words, boundary: int, now: int) -> bool:
    """Whether an answer of the index is true: of a living entry whose header is whole and has this key there."""
    row = table.entries[entry] if entry < len(table.entries) else None
    if row is None or row[STATE] != READY or row[BOUNDARIES] <= boundary:
        return False
    if row[EXPIRES] <= now:
        leave(table, users, entry)
        return False
    memory = users[row[START] :][: lead(int(row[BOUNDARIES]))]
    header = memory[:HEADER_BYTES].view(np.int64)
    if header[7] != _checksum(memory, int(row[BOUNDARIES])) or header[:7].tolist() != _header(table, entry):
        log.warning("kv pool: entry %d is torn or another pool's; dropped", entry)
        leave(table, users, entry)
        return False
    place = HEADER_BYTES + 16 * boundary
    return bool((memory[place : place + 16].view(np.uint64) == key).all())


def use(table: PoolTable, entry: int, now: int) -> None:
    """Somebody found it: it is newer, and no longer on a lease."""
    row = table.entries[entry]
    if row[EXPIRES] < row[LIVES]:
        row[EXPIRES] = row[LIVES]
        table.header[LEASES_USED] += 1
    row[[SEEN, USES]] = now, row[USES] + 1


def is_writing(table: PoolTable, entry: int, generation: int, seat: int) -> bool:
    """Whether this process still writes that very entry."""
    return table.entries[entry, [STATE, GENERATION, WRITER]].tolist() == [WRITING, generation, seat]


def _capacity(table: PoolTable) -> int:
    return int(table.header[USER_BYTES]) // space.LINE * space.LINE


def _header(table: PoolTable, entry: int) -> list[int]:
    row = table.entries[entry]
    return [MAGIC, int(table.header[POOL]), entry, *row[[GENERATION, SPAN, PAYLOAD, BOUNDARIES]].tolist()]


def _checksum(memory: Bytes, boundaries: int) -> int:
    """Of the header but its last word, and of the hashes."""
    hashes = memory[HEADER_BYTES : HEADER_BYTES + 16 * boundaries]
    return zlib.crc32(hashes.tobytes(), zlib.crc32(memory[: HEADER_BYTES - 8].tobytes()))
