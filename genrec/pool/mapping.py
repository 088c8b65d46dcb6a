"""The file of a pool in /dev/shm, as every process of the machine maps it.

First comes the table, which says what is where: counters, processes, entries, pins and indexes, all of fixed size.
Then, each on pages of its own, the key of users' hashes, and plain bytes: of users, of items, and how often users come.
It is one file so that a look at one size tells whether all of it is there: that is asked before every use.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
import weakref
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArtifactError, InputError
from genrec.pool.hotness import Hotness
from genrec.pool.index import Places, slots_for
from genrec.pool.memory import Bytes, mapped, touch
from genrec.process import lives, started

NAME = "pool"  # of the file
MAGIC = 0x67656E7265635053
# Words of the header: what the pool is, then what happened in it.
POOL, USER_BYTES, ITEM_ROWS, ITEM_ROW_BYTES, COUNTER = range(1, 6)
SECRET_BYTES = 6
(HITS, MISSES, EVICTIONS, TOKENS, ITEM_HITS, ITEM_MISSES, ITEM_EVICTIONS,
 LEASES_USED, LEASES_UNUSED, FORGOTTEN) = range(9, 19)  # fmt: skip
EVER = 19  # entries that were ever used, the first ones: of all, most never are
KEY_BYTES = 20  # of KV from one key of a user to the next
EVERY = 8  # keys of a user, of which the index knows one, and up to four more
FORGOT_NS = 21  # when anybody was last forgotten, on the monotonic clock
HEADER = 24
PAGE = 4096
ENTRY_WORDS = 24  # more than `genrec.pool.user_rows` names: entries are on cache lines
PROCESSES = 64  # that use one pool at a time
LOOK_S, DEAD_S = 0.02, 0.25  # between two looks at the file, and at who has died: requests lock often
LOCK_S = 0.05  # who holds the table for longer has been stopped; a request goes on without the pool
_threads = threading.Lock()  # of all pools: a file's lock keeps processes apart, not threads


class Gone(Exception):
    """The pool is no more: its file was removed, replaced or cut."""


class Busy(Exception):
    """The pool is out of reach for now."""


def create(
    folder: Path, user_bytes: int, item_rows: int, item_row_bytes: int, key_bytes: int = 4096,
    secret: bytes | None = None,
) -> None:  # fmt: skip
    """Make an empty pool, for this user only, in the place of another if there is one.

    Rows of items are on cache lines if `item_row_bytes` is a multiple of 64. `key_bytes` of KV lie from one key of a
    user to the next: the index has room for as many. Pools that share users share `secret`.
    Raises InputError: negative, or too large.
    """
    for name, value, least in (
        ("user_bytes", user_bytes, 0), ("item_rows", item_rows, 0),
        ("item_row_bytes", item_row_bytes, 0), ("key_bytes", key_bytes, 1),
    ):  # fmt: skip
        if value < least:
            raise InputError(name, f"is {value}", f"at least {least}")
    if secret is not None and not 16 <= len(secret) <= 64:
        raise InputError("secret", f"has {len(secret)} bytes", "16 to 64")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(folder):
        raise InputError("folder", f"{folder} can be written to by others", "a folder of this user alone")
    secret = secret or secrets.token_bytes(32)
    header = _header(user_bytes, item_rows, item_row_bytes, key_bytes)
    header[POOL], header[SECRET_BYTES] = secrets.randbits(62), len(secret)
    header[COUNTER] = secrets.randbits(60)  # generations of another pool are not mistaken for this one's
    places = _places(header)
    size, free = places[-1], os.statvfs(folder)
    if size > free.f_bavail * free.f_frsize:
        free_mib = free.f_bavail * free.f_frsize >> 20
        raise InputError("user_bytes and item_rows", f"take {size >> 20} MiB", f"{free_mib} MiB free")
    (folder / NAME).unlink(missing_ok=True)  # its memory is wanted
    _make(folder / f"{NAME}.new", size, {0: header.tobytes(), places[0]: secret})
    (folder / f"{NAME}.new").rename(folder / NAME)


def file_bytes(user_bytes: int, item_rows: int, item_row_bytes: int, key_bytes: int) -> int:
    """Size of the file that `create` makes."""
    return _places(_header(user_bytes, item_rows, item_row_bytes, key_bytes))[-1]


def _header(user_bytes: int, item_rows: int, item_row_bytes: int, key_bytes: int) -> NDArray[np.int64]:
    header = np.zeros(HEADER, np.int64)
    header[[0, USER_BYTES, ITEM_ROWS, ITEM_ROW_BYTES]] = MAGIC, user_bytes, item_rows, item_row_bytes
    header[KEY_BYTES] = key_bytes
    return header


def _places(header: NDArray[np.int64]) -> list[int]:
    """Where the secret, users, items and hotness begin, and where the last ends."""
    table = sum(size for _, _, size in _sections(header))
    users, rows, row_bytes = header[[USER_BYTES, ITEM_ROWS, ITEM_ROW_BYTES]].tolist()
    sizes = [table, PAGE, users, rows * row_bytes, Hotness.bytes_for()]
    return list(accumulate(-(-size // PAGE) * PAGE for size in sizes))


def _private(folder: Path) -> bool:
    """Whether nobody else could put a pool of his own there."""
    about = folder.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _make(path: Path, size: int, content: dict[int, bytes]) -> None:
    """A new file of that size with its memory taken, and with bytes at their places."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        for place, each in content.items():
            os.pwrite(descriptor, each, place)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class PoolTable:
    """The arrays of a table, mapped. E entries, R item rows."""

    header: NDArray[np.int64]  # [HEADER]
    processes: NDArray[np.int64]  # [PROCESSES, 2]: pid and start time, 0 where the seat is free
    entries: NDArray[np.int64]  # [E, words of genrec.pool.user_rows]
    pins: NDArray[np.int16]  # [E, PROCESSES]: how many readers each process has
    user_index: Places
    row_state: NDArray[np.int8]  # [R]
    row_writer: NDArray[np.int8]  # [R]: the seat of who fills it
    row_heat: NDArray[np.float32]  # [R]: how often it was asked for of late
    row_seen: NDArray[np.int64]  # [R]: when it last was
    row_generation: NDArray[np.int64]  # [R]
    row_key: NDArray[np.uint64]  # [R, 2]
    item_index: Places


def _sections(header: NDArray[np.int64]) -> list[tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Type, shape and bytes (whole cache lines) of every array of a table."""
    user_bytes, rows, key_bytes = header[[USER_BYTES, ITEM_ROWS, KEY_BYTES]].tolist()
    keys = user_bytes // max(key_bytes, 1)  # of all users, if every entry is full
    entries = min(max(user_bytes >> 16, keys // 16, 64), 1 << 16)
    shapes: list[tuple[type, tuple[int, ...]]] = [
        (np.int64, (HEADER,)),
        (np.int64, (PROCESSES, 2)),
        (np.int64, (entries, ENTRY_WORDS)),
        (np.int16, (entries, PROCESSES)),
        (np.uint64, (slots_for(max(min(keys // EVERY + 4 * entries, keys), 4096)), 3)),
        (np.int8, (rows,)),
        (np.int8, (rows,)),
        (np.float32, (rows,)),
        (np.int64, (rows,)),
        (np.int64, (rows,)),
        (np.uint64, (rows, 2)),
        (np.uint64, (slots_for(rows), 3)),
    ]
    return [
        (np.dtype(kind), shape, -(-int(np.prod(shape)) * np.dtype(kind).itemsize // 64) * 64)
        for kind, shape in shapes
    ]


def _table(memory: Bytes) -> PoolTable:
    """The arrays at its beginning. Raises ValueError where it is no pool, or not a whole one."""
    if len(memory) < HEADER * 8:
        raise ValueError("it is too short")
    header = memory[: HEADER * 8].view(np.int64)
    if header[0] != MAGIC or _places(header)[-1] != len(memory):
        raise ValueError("its size is not what it says")
    arrays, start = [], 0
    for kind, shape, size in _sections(header):
        used = int(np.prod(shape)) * kind.itemsize
        arrays.append(memory[start : start + used].view(kind).reshape(shape))
        start += size
    return PoolTable(*arrays)


class Mapping:
    """A mapped pool: its `table`, `users`, `items` and `hotness` uint8[bytes], and `secret`."""

    def __init__(self, folder: Path) -> None:
        """Map it. Raises ArtifactError when it is no pool."""
        self._file: list[int] = []  # its descriptor, which is closed under a lock: see `close`
        weakref.finalize(self, _close_unused, self._file).atexit = False
        try:
            if not _private(folder):
                raise ValueError("others can write to its folder")
            self._file.append(os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
            memory = mapped(self._file[0])
            self.table = _table(memory)
            header = self.table.header
            secret, users, items, hotness, _ = _places(header)
            self.secret = memory[secret : secret + header[SECRET_BYTES]].tobytes()
            self.users = memory[users : users + header[USER_BYTES]]
            self.items = memory[items : items + header[ITEM_ROWS] * header[ITEM_ROW_BYTES]]
            self.hotness = memory[hotness : hotness + Hotness.bytes_for()]
            self._memory = memory
        except (OSError, ValueError) as error:
            self.close()
            raise ArtifactError(folder, f"not a KV pool: {error}") from error
        self._seat: tuple[int, int] | None = None
        self._look_at = self._count_at = 0.0  # on the monotonic clock: at the file, and at who has died

    def lock(self, wait_s: float = LOCK_S) -> PoolTable:
        """The table, until `unlock`; a killed process gives its lock back by dying. Raises Gone, Busy."""
        if not _threads.acquire(timeout=wait_s):
            raise Busy("a thread of this process has held the table for too long")
        try:
            self._check()
            self._lock(wait_s)
        except BaseException:
            _threads.release()
            raise
        return self.table

    def unlock(self) -> None:
        """Others may have the table."""
        try:
            fcntl.lockf(self._file[0], fcntl.LOCK_UN)
        finally:
            _threads.release()

    def _lock(self, wait_s: float) -> None:
        """Wait for the file's lock, but for no process that was stopped while it held it."""
        end = time.monotonic() + wait_s
        while True:
            try:
                return fcntl.lockf(self._file[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() > end:
                    raise Busy("another process has held the table for too long") from error
            time.sleep(2e-5)

    def _check(self) -> None:
        """A file that was cut is no memory to read from, and one that was removed is nobody else's any more."""
        if not self._file:
            raise Gone("it was closed")
        now_s = time.monotonic()
        look, self._look_at = (True, now_s + LOOK_S) if now_s >= self._look_at else (False, self._look_at)
        # Its size alone is a third of the work.
        if os.lseek(self._file[0], 0, os.SEEK_END) != len(self._memory) or (
            look and not os.fstat(self._file[0]).st_nlink
        ):
            raise Gone("its file is gone or was replaced")

    def seat(self) -> int:
        """This process's place in `processes`; under the lock. Raises Busy when all are taken, OSError."""
        pid = os.getpid()
        if self._seat is None or self._seat[0] != pid:  # a forked child sits for itself
            free = np.flatnonzero(self.table.processes[:, 1] == 0)
            if not len(free):
                raise Busy(f"{PROCESSES} processes use it already")
            self.table.processes[free[0]] = pid, started(pid)
            self._seat = pid, int(free[0])
        return self._seat[1]

    def dead(self) -> list[int]:
        """Seats of processes that have ended, as far as that is known; under the lock."""
        now_s = time.monotonic()
        if now_s < self._count_at:
            return []
        self._count_at = now_s + DEAD_S
        seats = self.table.processes
        mine = self._seat[1] if self._seat and self._seat[0] == os.getpid() else -1
        taken = np.flatnonzero(seats[:, 1]).tolist()
        return [seat for seat in taken if seat != mine and not lives(*seats[seat].tolist())]

    def touch(self) -> None:
        """Map every page now, the table's first, on a thread of its own."""
        threading.Thread(target=touch, args=(self._memory,), daemon=True).start()

    def close(self) -> None:
        """Let go of the file; views given out before keep their memory."""
        with _threads:  # closing any descriptor of a file gives up this process's lock on it
            _close_all(self._file)


def _close_all(files: list[int]) -> None:
    while files:
        os.close(files.pop())


def _close_unused(files: list[int]) -> None:
    """Of a mapping that nobody has any more; unless a table is locked, by the very thread that collects it perhaps."""
    if _threads.acquire(blocking=False):
        try:
            _close_all(files)
        finally:
            _threads.release()
