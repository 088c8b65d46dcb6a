"""The KV pool of the ranking path: KV of users and of items, one copy for all processes of a machine.

BAT, section 5.1: entries of one user or one item with an index and their hotness. Here the memory is a folder of
/dev/shm (`mapping`), users are contiguous entries of any size (`users`), items rows of one size (`items`). What is
found is read where it lies, without a copy.

A pool may be lost, full, damaged or stuck: then nothing is found or kept, and the caller computes what it would have
read. No method raises for that; the log says it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArtifactError
from genrec.pool import items, lead, leaving, mapping, user_rows, users
from genrec.pool.hotness import Hotness
from genrec.pool.items import NONE, Rows
from genrec.pool.keys import Keys, Words, words
from genrec.pool.mapping import LOCK_S, Busy, Gone, Mapping, PoolTable
from genrec.pool.memory import Bytes
from genrec.pool.owner import TTL_S
from genrec.pool.rule import Recency, Room, Rule
from genrec.pool.usage import usage_of
from genrec.pool.users import UserEntry, Wanted, Writing
from genrec.pool.warm import warm

log = logging.getLogger("genrec.pool")
BUSY_S = 1.0  # who could not have the table does not wait for it again so soon: a request asks several times
NOTHING: Bytes = np.zeros(0, np.uint8)
NO_ROWS = np.zeros(0, np.int64)
T = TypeVar("T")
FoundOrRoom = tuple[UserEntry | None, Writing | None]


class Pool:
    """One machine's pool. Every method is safe between processes and threads."""

    create = staticmethod(mapping.create)

    def __init__(
        self, folder: Path, clock: Callable[[], int] = time.monotonic_ns, ttl_s: float = TTL_S
    ) -> None:
        """Map a pool; where there is none it is `lost`. `clock` (ns) is one for all processes. A user's entry lives
        `ttl_s`. `rule`, an attribute, says which leave first: the least recently used, or a policy of `choice`.
        """
        self.clock, self._ttl = clock, int(ttl_s * 1e9)
        self.rule: Rule = Recency()
        self._map: Mapping | None = None
        # What could not be done while others held the table.
        self._late: list[Callable[[Mapping, PoolTable], None]] = []
        self._filling: dict[int, int] = {}  # rows of items -> their generation
        self._busy_until = 0.0  # on the monotonic clock: until then nobody waits for the table
        self.hotness = Hotness()  # how often users come; as all processes count it where there is a pool
        try:
            self._map = Mapping(Path(folder))
        except ArtifactError as error:
            self._lose(str(error))
        else:
            self._map.touch()
            self.hotness.lie_in(self._map.hotness)
            warm()
        self.item_row_bytes = int(self._map.table.header[mapping.ITEM_ROW_BYTES]) if self._map else 0

    @property
    def lost(self) -> bool:
        """Whether it is gone for good: open it again to see whether there is another in its place."""
        return self._map is None

    @property
    def secret(self) -> bytes:
        """What hashes of users are keyed with; of a lost pool any, for nothing is found."""
        return pool.secret if (pool := self._map) else bytes(32)

    @property
    def forgot_ns(self) -> int:
        """When anybody was last forgotten, on the monotonic clock; 0: never."""
        return int(pool.table.header[mapping.FORGOT_NS]) if (pool := self._map) else 0

    def close(self) -> None:
        """Let go of it. Entries found before stay readable, and are released by the end of the process."""
        pool, self._map = self._map, None
        if pool:
            pool.close()

    # Users.

    def find_user(self, hashes: Keys, tokens_per_boundary: int, use: bool = True) -> UserEntry | None:
        """The entry that agrees longest with `hashes` (`keys.user_words`), kept in place until `release`; or None.

        Without `use` it is no newer for it, and its lease ends as it would have: no ranking needs it.
        """
        asked = words(hashes)
        return self.locked(lambda m, t: self._find(m, t, asked, tokens_per_boundary, use), None)

    def write_user(
        self, hashes: Keys, span: int, size: int, owner: bytes, came_ns: int | None = None, lives_s: float = inf
    ) -> Writing | None:  # fmt: skip
        """Room for the KV of `span` tokens in `size` bytes, whose owner is `keys.owner_key`; other entries may leave.

        It lives `lives_s` at most. None where there is no room, where a living process has or computes the entry of the
        same last hash, and where anybody was forgotten since `came_ns` on the monotonic clock.
        """
        named, wanted = words(hashes), Wanted(span, size, owner, came_ns, lives_s)
        return self.locked(lambda m, t: self._take(m, t, named, wanted), None)

    def hold_user(
        self, hashes: Keys, tokens_per_boundary: int, tokens: int, wanted: Wanted | None
    ) -> FoundOrRoom:
        """`find_user`, and `write_user` of what is `wanted` if less than `tokens` were found, under one lock."""
        asked = words(hashes)

        def hold(pool: Mapping, table: PoolTable) -> FoundOrRoom:
            found = self._find(pool, table, asked, tokens_per_boundary)
            whole = found is not None and found.tokens == tokens
            return found, None if whole or wanted is None else self._take(pool, table, asked, wanted)

        nothing: FoundOrRoom = None, None
        return self.locked(hold, nothing)

    def _find(
        self, pool: Mapping, table: PoolTable, asked: Words, step: int, use: bool = True
    ) -> UserEntry | None:
        find = users.use if use else users.pin
        entry, tokens = find(table, pool.users, asked, step, pool.seat(), self.clock())
        if entry < 0:
            return None
        row = table.entries[entry].tolist()
        memory = _payload(pool, row)
        memory.flags.writeable = False
        return UserEntry(memory, tokens, row[user_rows.SPAN], entry, row[user_rows.GENERATION])

    def _take(self, pool: Mapping, table: PoolTable, named: Words, wanted: Wanted) -> Writing | None:
        if wanted.came_ns is not None and wanted.came_ns <= table.header[mapping.FORGOT_NS]:
            return None
        now = self.clock()
        self._settle(pool, table)
        lives = now, now + int(min(wanted.lives_s * 1e9, self._ttl))
        entry = users.take(table, pool.users, named, wanted, pool.seat(), lives, self.rule)
        if entry < 0:
            return None
        row = table.entries[entry].tolist()
        return Writing(_payload(pool, row), named, entry, row[user_rows.GENERATION])

    def room(self, hashes: Keys, size: int) -> Room:
        """What an entry of `size` bytes would find now; of a lost pool nothing."""
        full, count = Room(False, inf), len(hashes)
        return self.locked(lambda m, t: users.room(t, m.users, count, size, self.clock(), self.rule), full)

    def commit(self, writing: Writing, lease_s: float = inf) -> None:
        """What was written can be found from now on, by all processes; it leaves after `lease_s` if nobody uses it."""
        until = self.clock() + int(min(lease_s * 1e9, self._ttl))
        self._now_or_next(lambda pool, table: users.publish(table, pool.users, writing, pool.seat(), until))

    def abandon(self, writing: Writing) -> None:
        """What was written is nobody's."""

        def drop(pool: Mapping, table: PoolTable) -> None:
            if users.is_writing(table, writing.entry, writing.generation, pool.seat()):
                leaving.free(table, pool.users, writing.entry)

        self._now_or_next(drop)

    def release(self, entry: UserEntry) -> None:
        """Nobody here reads it any more; once for every find."""
        self._now_or_next(lambda p, t: leaving.unpin(t, p.users, entry.entry, entry.generation, p.seat()))

    # Items.

    @property
    def items_memory(self) -> Bytes:
        """uint8[item_rows * item_row_bytes], one and the same for the life of this object; of a lost pool empty."""
        # Here and below it is read once: another stream's thread may lose it meanwhile.
        return pool.items if (pool := self._map) and len(pool.table.row_generation) else NOTHING

    def item_rows(self, keys: Keys) -> Rows:
        """int32[C]: the row of each item (`keys.item_words`), -1 where absent; who is asked for grows hotter."""
        return self.find_items(keys)[0]

    def find_items(self, keys: Keys) -> tuple[Rows, NDArray[np.int64]]:
        """The same with the rows' generations int64[C], read at once: what `unchanged` compares after a pass."""
        asked = words(keys)
        found = self.locked(lambda _, table: items.find(table, asked, self.clock()), None)
        return found or (np.full(len(asked), -1, np.int32), np.full(len(asked), -1))

    def unchanged(self, rows: Rows, generations: NDArray[np.int64]) -> bool:
        """Whether rows read since `find_items` are whole: a row's generation changes before its bytes do."""
        now = pool.table.row_generation if (pool := self._map) else NO_ROWS
        return items.unchanged(now, rows, generations)

    def item_generations(self, rows: Rows) -> NDArray[np.int64]:
        """int64[n], -1 for row -1: it changes before a row's bytes do."""
        pool = self._map
        return np.where(rows < 0, -1, pool.table.row_generation[rows]) if pool else np.full(len(rows), -1)

    def write_items(self, keys: Keys, heat: NDArray[np.float64] | None = None, spared: Rows = NONE) -> Rows:
        """int32[n]: a row to fill for each item, -1 where it is there, on its way, or no row may leave.

        Rows stay invisible until `commit_items`; cold rows leave for them. `heat`, `spared`: see `items.take`.
        """
        wanted = words(keys)

        def take(pool: Mapping, table: PoolTable) -> Rows:
            now = self.clock()
            self.tidy(pool, table)
            rows = items.take(table, wanted, pool.seat(), now, heat, spared)
            self._filling |= {int(row): int(table.row_generation[row]) for row in rows if row >= 0}
            return rows

        return self.locked(take, np.full(len(wanted), -1, np.int32))

    def commit_items(self, rows: Rows) -> None:
        """These rows of `write_items` are filled; -1 among them is passed over."""
        self._end_filling(rows, items.publish)

    def abandon_items(self, rows: Rows) -> None:
        """These rows of `write_items` will not be filled."""
        self._end_filling(rows, items.give_up)

    def _end_filling(
        self, rows: Rows, end: Callable[[PoolTable, Rows, NDArray[np.int64], int], None]
    ) -> None:
        mine = np.array([row for row in rows.tolist() if row in self._filling], np.int32)
        generations = np.array([self._filling.pop(row) for row in mine.tolist()], np.int64)
        self._now_or_next(lambda pool, table: end(table, mine, generations, pool.seat()))

    # Both.

    def usage(self) -> dict[str, int] | None:
        """What is in it now (entries, bytes, items) and what happened since it was made, by all processes; or None."""

        def count(pool: Mapping, table: PoolTable) -> dict[str, int]:
            self.tidy(pool, table)
            return usage_of(table)

        return self.locked(count, None)

    def tidy(self, pool: Mapping, table: PoolTable) -> None:
        """On the locked table: what the dead and the expired hold is free."""
        self._settle(pool, table)
        leaving.sweep(table, pool.users, [], self.clock())

    def _settle(self, pool: Mapping, table: PoolTable) -> None:
        if dead := pool.dead():
            leaving.sweep(table, pool.users, dead, self.clock())
            items.sweep(table, dead)
            table.processes[dead] = 0

    def _now_or_next(self, work: Callable[[Mapping, PoolTable], None]) -> None:
        """Run it now; without the lock, first at the next one. Dropping it would leak the entry."""

        def done(pool: Mapping, table: PoolTable) -> bool:
            work(pool, table)
            return True

        if not self.locked(done, False) and not self.lost:
            self._late.append(work)

    def locked(self, work: Callable[[Mapping, PoolTable], T], otherwise: T) -> T:
        """What `work` answers on the locked table; `otherwise` when there is none to be had."""
        pool = self._map
        if pool is None:
            return otherwise
        wait_s = LOCK_S if time.monotonic() >= self._busy_until else 0.0
        try:
            table = pool.lock(wait_s)
            try:
                while self._late:
                    self._late.pop(0)(pool, table)
                return work(pool, table)
            finally:
                pool.unlock()
        except (Busy, OSError) as error:  # no descriptor is left, say
            if wait_s:
                self._busy_until = time.monotonic() + BUSY_S
                log.warning("kv pool: %s; for %g s nobody waits for it", error, BUSY_S)
        except Gone as error:
            self._lose(str(error))
        except (IndexError, ValueError, OverflowError):  # a table that holds nonsense
            log.exception("kv pool: the table is damaged")
            self._lose("the table is damaged")
        return otherwise

    def _lose(self, why: str) -> None:
        log.warning("kv pool: %s; it is empty from now on", why)
        self.close()
        self.hotness.lie_in(None)  # a file that was cut is no memory to read from


def _payload(pool: Mapping, row: list[int]) -> Bytes:
    start = row[user_rows.START] + lead.bytes_of(row[user_rows.BOUNDARIES])
    return pool.users[start : start + row[user_rows.PAYLOAD]]
