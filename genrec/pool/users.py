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
from numpy.typing import NDArray

from genrec.kv.layout import LINE, aligned
from genrec.pool import index, lead, leaving, space, user_kernels, user_rows
from genrec.pool.keys import Words, words
from genrec.pool.mapping import PoolTable
from genrec.pool.memory import Bytes
from genrec.pool.rule import Recency, Room, Rule, Standing
from genrec.pool.user_rows import GENERATION, SIZE, START, STATE, WRITER, WRITING, used_entries

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
    arrays = table.header, users, table.entries, table.pins, table.user_index
    whose, size = words([wanted.owner]).view(np.int64).ravel().tolist(), wanted.size
    key, key_2 = hashes[-1].view(np.int64).tolist()
    said = (seat, len(hashes), wanted.span, size, lives[1], lives[0], *whose, key, key_2)
    total, capacity = lead.bytes_of(len(hashes)) + aligned(size), _capacity(users)
    if type(rule) is Recency:  # and none that goes by more
        return int(user_kernels.take_oldest(*arrays, total, capacity, said))
    known, used, (may, age, spans, owners) = user_kernels.survey(*arrays, key, key_2, lives[0])
    if known:
        return -1
    worth = rule.worth(Standing(lives[0], age, spans, owners))
    entry, left = user_kernels.settle(*arrays, used, may, worth, total, capacity, said)
    for each in left.tolist():
        rule.evicted(each)
    return int(entry)


def room(table: PoolTable, users: Bytes, boundaries: int, size: int, now: int, rule: Rule) -> Room:
    """What an entry of so many bytes would find."""
    used = used_entries(table)
    rows, total = table.entries[used], lead.bytes_of(boundaries) + aligned(size)
    found = space.place(rows[:, START], rows[:, SIZE], np.full(len(used), np.inf), total, _capacity(users))
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

    It leaves at `until` (ns) if nobody has used it, and at the end of its life in any case; but no sooner than those
    would have.
    """
    arrays = table.header, users, table.entries, table.pins, table.user_index
    if not user_kernels.show(*arrays, writing.entry, writing.generation, seat, writing.hashes, until):
        raise ValueError("an entry outside its memory")


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
        if judged == lead.TRUE:
            return int(answer) & lead.ENTRY, int(boundary)
        _disbelieve(table, users, hashes, boundary, answer, judged)


def use(table: PoolTable, users: Bytes, hashes: Words, step: int, seat: int, now: int) -> tuple[int, int]:
    """(entry, tokens): what `find` finds is counted and kept in its place for a reader of a process, or (-1, 0)."""
    arrays = table.header, users, table.entries, table.pins, table.user_index
    while True:
        boundary, answer, judged, tokens = user_kernels.find_and_use(*arrays, hashes, step, seat, now)
        if not boundary:
            return -1, 0
        if judged == lead.TRUE:
            return int(answer) & lead.ENTRY, int(tokens)
        _disbelieve(table, users, hashes, boundary, answer, judged)


def pin(table: PoolTable, users: Bytes, hashes: Words, step: int, seat: int, now: int) -> tuple[int, int]:
    """(entry, tokens): what `find` finds is only kept in its place for a reader of a process, or (-1, 0)."""
    entry, boundary = find(table, users, hashes, now)
    if entry < 0:
        return -1, 0
    table.pins[entry, seat] += 1
    return entry, min(boundary * step, int(table.entries[entry, user_rows.SPAN]))


def _disbelieve(
    table: PoolTable, users: Bytes, hashes: Words, boundary: np.int64, answer: np.int64, judged: np.int64
) -> None:
    """The index no longer answers this, and an entry that is over or torn leaves."""
    entry = int(answer) & lead.ENTRY
    if judged == lead.TORN:
        log.warning("kv pool: entry %d is torn or another pool's; dropped", entry)
    if judged != lead.FOREIGN:
        leaving.leave(table, users, entry)
    index.remove(table.user_index, hashes[boundary : boundary + 1], np.array([answer]))


def is_writing(table: PoolTable, entry: int, generation: int, seat: int) -> bool:
    """Whether this process still writes that very entry."""
    row = table.entries[entry]
    return bool(row[STATE] == WRITING and row[GENERATION] == generation and row[WRITER] == seat)


def _capacity(users: Bytes) -> int:
    return len(users) // LINE * LINE
