"""A second tier for users' KV: a file on disk for entries that the pool may drop soon (RelayGR, the expander).

Who refreshes his page within minutes is worth keeping, but not the memory that rankings need now. Entries are copied as
they are, before their place in the pool is wanted, and come back by a pre-inference alone: no ranking waits for a disk.
The file has no name, so what is in it ends with the process; nothing in it lives longer than in the pool.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genrec import metrics
from genrec.errors import InputError
from genrec.kv.layout import aligned
from genrec.pool import lead, space, user_rows
from genrec.pool.keys import Words
from genrec.pool.mapping import EVER, FORGOTTEN, KEY_BYTES, USER_BYTES, Mapping, PoolTable
from genrec.pool.memory import Bytes
from genrec.pool.pool import Pool
from genrec.pool.tier_index import TierIndex
from genrec.pool.users import UserEntry

log = logging.getLogger("genrec.pool")
WARM = 0.5  # of the pool's bytes for users: entries older than the newest ones that fill it are copied
LOOK_S = 0.05
PATIENCE_S = 0.005  # for a look at what is there; to clear the file takes longer


class Cold(NamedTuple):
    """An entry of the pool, kept in place until it is released, with the keys of its boundaries; it ends at `until`."""

    entry: UserEntry
    hashes: Words
    until: int  # ns on the pool's clock
    forgotten: int  # how often users had been when it was found


class Kept(NamedTuple):
    """Where an entry lies in the file."""

    start: int
    size: int
    span: int
    hashes: Words
    until: int
    crc: int  # of what it was copied from


def coldest(pool: Pool, known: Collection[bytes], seen: dict[int, int], most: int) -> Cold | None:
    """The least recently used entry beyond the WARM ones whose last key is not `known`; None where there is none.

    Looked at are those that fit into `most` bytes together, each once: of those here already or found, `seen` has the
    number and the LIVES. What nobody has used yet, only computed ahead, is left out: many of those never come.
    """

    def find(mapped: Mapping, table: PoolTable) -> Cold | None:
        rows, now = table.entries[: table.header[EVER]], pool.clock()
        used = np.flatnonzero(
            (rows[:, user_rows.STATE] == user_rows.READY) & (rows[:, user_rows.WIPE] == 0)
            & (rows[:, user_rows.EXPIRES] > now) & (rows[:, user_rows.USES] > 0)
        )  # fmt: skip
        newest = used[np.argsort(-rows[used, user_rows.SEEN], kind="stable")]
        cold = newest[np.cumsum(rows[newest, user_rows.SIZE]) > WARM * table.header[USER_BYTES]][::-1]
        sizes = aligned(rows[cold, user_rows.PAYLOAD])
        cold = cold[sizes <= most][np.cumsum(sizes[sizes <= most]) <= most]
        for number, lives in zip(cold.tolist(), rows[cold, user_rows.LIVES].tolist(), strict=True):
            if seen.get(number) == lives:
                continue
            row, seen[number] = rows[number], lives
            if row[[user_rows.KEY, user_rows.KEY_2]].tobytes() in known:
                continue
            start, count = int(row[user_rows.START]), int(row[user_rows.BOUNDARIES])
            keys = (
                mapped.users[start + user_rows.HEADER_BYTES :][: 16 * count]
                .view(np.uint64)
                .reshape(-1, 2)
                .copy()
            )
            memory = mapped.users[start + lead.bytes_of(count) :][: int(row[user_rows.PAYLOAD])]
            table.pins[number, mapped.seat()] += 1
            span = int(row[user_rows.SPAN])
            entry = UserEntry(memory, span, span, number, int(row[user_rows.GENERATION]))
            return Cold(entry, keys, int(row[user_rows.LIVES]), int(table.header[FORGOTTEN]))
        return None

    return pool.locked(find, None)


def open_tier(pool: Pool, folder: str, mb: int) -> Tier | None:
    """One at work, of so many MiB; None where no folder is named. Raises InputError."""
    if not folder:
        return None
    tier = Tier(pool, Path(folder), mb << 20)
    tier.start()
    return tier


class Tier:
    """Of one process; safe between threads."""

    def __init__(self, pool: Pool, folder: Path, size: int) -> None:
        """`size` bytes of a file in `folder`. Raises InputError where there is no such folder, or no such room."""
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            raise InputError(
                "pool_disk", f"{folder}: {error.strerror}", f"a folder with {size >> 20} MiB free"
            ) from error
        self._memory: Bytes = np.frombuffer(mmap.mmap(self._file.fileno(), size), np.uint8)
        self._pool, self._lock, self._ended = pool, threading.Lock(), threading.Event()
        self._kept: dict[int, Kept] = {}  # by number, the least recently used first
        self._number = 0
        self._written = 0  # bytes from the start of the file, behind which it has only zeros
        self._seen: dict[int, int] = {}  # entries of the pool, as `coldest` says: each is copied once
        key_bytes = pool.locked(lambda _, table: int(table.header[KEY_BYTES]), 4096)
        self._index = TierIndex(max(size // key_bytes, 4096))
        self._forgotten = self._count_forgotten()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Copy what grows cold, from now on."""
        self._thread.start()

    def tokens(self, hashes: Words, step: int) -> int:
        """Of a user's tokens with these keys, `step` to a boundary, how many the file has; 0 while it is written to.

        Whoever asks waits for no disk.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self._find(hashes, step)[1]
        finally:
            self._lock.release()

    def restore(self, hashes: Words, step: int, beyond: int, copy: Callable[[Bytes, int, int], None]) -> int:
        """`copy(memory, span, tokens)` of the entry that agrees longest, if in more than `beyond`; tokens.

        0 as well while the file is cleared, as rankings may be waiting for this thread, and for a damaged entry.
        """
        if not self._lock.acquire(timeout=PATIENCE_S):
            return 0
        try:
            self._drop_old()
            number, tokens = self._find(hashes, step)
            if tokens <= beyond:
                return 0
            kept = self._kept[number]
            memory = self._memory[kept.start : kept.start + kept.size]
            if zlib.crc32(memory.data) != kept.crc:
                log.warning("the second tier of users' KV: an entry is damaged; it is computed anew")
                self._drop(number)
                return 0
            self._kept[number] = self._kept.pop(number)  # the newest
            copy(memory, kept.span, tokens)
        finally:
            self._lock.release()
        metrics.POOL_TIER.add(what="restored")
        return tokens

    def look(self) -> None:
        """Drop what has expired, all of it where a user was forgotten, and copy what grows cold."""
        with self._lock:
            self._drop_old()
        known = self._keys()
        while not self._ended.is_set() and (
            cold := coldest(self._pool, known, self._seen, len(self._memory))
        ):
            try:
                done = self._keep(cold)
            finally:
                self._pool.release(cold.entry)
            if not done:
                self._seen.pop(cold.entry.entry, None)
                break

    def close(self) -> None:
        """Copy nothing more, and let go of the file."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._file.close()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.look()
            except Exception:  # the thread must live on
                log.exception("the second tier of users' KV")

    def _keys(self) -> set[bytes]:
        with self._lock:  # a pre-inference may be moving an entry to the end
            return {kept.hashes[-1].tobytes() for kept in self._kept.values()}

    def _count_forgotten(self) -> int | None:
        """None while the pool is out of reach."""
        return self._pool.locked(lambda _, table: int(table.header[FORGOTTEN]), None)

    def _drop_old(self) -> None:
        forgotten, now = self._count_forgotten(), self._pool.clock()
        # Of a pool that is gone nobody tells who is forgotten.
        wipe = self._pool.lost or (forgotten is not None and forgotten != self._forgotten)
        self._forgotten = self._forgotten if forgotten is None else forgotten
        for number in [n for n, kept in self._kept.items() if kept.until <= now and not wipe]:
            self._drop(number)
        if wipe:
            metrics.POOL_TIER.add(len(self._kept), what="dropped")
            self._kept.clear()
            self._index.clear()
            self._seen.clear()  # what others have in the pool is copied again
            self._memory[: self._written] = 0  # what left earlier has bytes here too
            self._written = 0

    def _drop(self, number: int) -> None:
        del self._kept[number]
        self._index.remove(number)
        metrics.POOL_TIER.add(what="dropped")

    def _keep(self, cold: Cold) -> bool:
        """False where there is no room, however many leave, or a user has been forgotten since it was found: him?

        Others do not wait while it is copied: only this thread gives places away.
        """
        memory = cold.entry.memory
        with self._lock:
            start = self._room(len(memory)) if cold.forgotten == self._forgotten else None
            if start is None:
                return False
        place = self._memory[start : start + len(memory)]
        place[:] = memory
        crc = zlib.crc32(memory.data)
        with self._lock:
            if cold.forgotten != self._forgotten:
                place[:] = 0
                return False
            kept = Kept(start, len(memory), cold.entry.span, cold.hashes, cold.until, crc)
            self._number += 1
            self._kept[self._number] = kept
            self._written = max(self._written, start + len(memory))
            self._index.add(self._number, kept.hashes)
        metrics.POOL_TIER.add(what="kept")
        return True

    def _room(self, size: int) -> int | None:
        """Where so many bytes go; who is there leaves."""
        there = list(self._kept.items())
        starts, taken = [kept.start for _, kept in there], [aligned(kept.size) for _, kept in there]
        found = space.place(starts, taken, range(len(there)), aligned(size), len(self._memory))
        if found is None:
            return None
        for at in found[1].tolist():
            self._drop(there[at][0])
        return found[0]

    def _find(self, hashes: Words, step: int) -> tuple[int, int]:
        """(number, tokens) of the longest agreement, or (0, 0)."""
        number, boundary = self._index.find(hashes)
        return number, min(boundary * step, self._kept[number].span) if number else 0
