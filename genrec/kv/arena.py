"""The KV arena: slots in a file of /dev/shm that every engine process of the machine maps.

Prefill takes a region (adjacent slots, one per request of its batch) and writes KV into it; a handle INT64[4]
= (segment, slot, generation, row) travels through Triton in the KV's place. A row is FREE, HELD by a process that
works on it, IDLE between steps until its lease ends, or DONE; a region's slots are free again when all its rows are
DONE. So a killed process or a lost request leaks nothing, and a stale handle is an error, never wrong items.
A slot still holds what its last owner left, so a row says how far its request has come: whose TURN it is, for how
many BEAMS the last pass wrote, the LENGTH of its prompt. A step that comes out of turn is refused.

Invariants: the table changes only under the lock; STATE is the last word written of a row; a row that is HELD by a
living process is never reaped (it may still be written to).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genrec import metrics
from genrec.errors import ArenaFull, ArtifactError, InputError, StaleHandle
from genrec.files import private
from genrec.process import lives, started

FREE, HELD, IDLE, DONE = range(4)
STATE, GENERATION, OWNER, STARTED, LEASE, FIRST, ROWS, SPAN, TURN, BEAMS, LENGTH = range(11)
WORDS = 11  # of a row
MAGIC = 0x67656E7265634B56
HEADER_WORDS = 8  # magic, segment, slots, slot bytes, data offset, spare
PAGE = 4096
LEASE_S = 10.0
NO_KV = (-1, -1, -1, -1)
SCRATCH = (0, 0, 0, 0)  # what Triton's warm-up sends: slot 0 belongs to nobody and is never given out
# A process has one lock on a file, however often it has opened it: its threads exclude each other by this.
_threads = threading.Lock()
Handle = tuple[int, int, int, int]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """Adjacent slots written by one prefill: `memory` uint8[rows * slot bytes], `handles` one per row."""

    memory: Bytes
    rows: int
    span: int
    handles: tuple[Handle, ...]


@dataclass(frozen=True)
class Row:
    """One request's place in a region: `memory` is the whole region's. Its prompt has `length` tokens, and the last
    pass left logits and unshared KV of `beams` beams; None where nobody counts.
    """  # fmt: skip

    memory: Bytes
    rows: int
    span: int
    row: int
    length: int = 1
    beams: int | None = None


class Arena:
    """One mapped arena. Every method is safe between processes and threads."""

    def __init__(self, path: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Map an existing arena. `clock` is one for all processes. Raises ArtifactError when the file is none."""
        self.path, self._clock = Path(path), clock
        try:
            self._file = open(self.path, "r+b")  # noqa: SIM115  (closed in close())
            self._map = mmap.mmap(self._file.fileno(), 0)
        except (OSError, ValueError) as error:
            raise ArtifactError(path, f"not a KV arena: {error}") from error
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        header = (
            self._bytes[: HEADER_WORDS * 8].view(np.int64)
            if len(self._bytes) >= PAGE
            else np.zeros(8, np.int64)
        )
        if header[0] != MAGIC or header[4] + header[2] * header[3] != len(self._bytes):
            raise ArtifactError(path, "not a KV arena: wrong magic or size")
        self.segment, self.slots, self.slot_bytes, self._data = (int(x) for x in header[1:5])
        self._table = (
            self._bytes[HEADER_WORDS * 8 :][: self.slots * WORDS * 8].view(np.int64).reshape(-1, WORDS)
        )
        self._me = (os.getpid(), started(os.getpid()))

    @classmethod
    def create(cls, path: Path, slots: int, slot_bytes: int) -> Arena:
        """Make an arena of `slots` usable slots (and the scratch slot), every page touched: a first touch is slow."""
        if slots < 1:
            raise InputError("slots", f"is {slots}", "at least 1")
        total = slots + 1
        slot_bytes = -(-slot_bytes // PAGE) * PAGE
        data = -(-(HEADER_WORDS + total * WORDS) * 8 // PAGE) * PAGE
        size = data + total * slot_bytes
        free = os.statvfs(Path(path).parent)
        if size > free.f_bavail * free.f_frsize:
            raise InputError(
                "slots",
                f"{slots} slots take {size >> 20} MiB",
                f"{free.f_bavail * free.f_frsize >> 20} MiB free",
            )
        with open(path, "xb", opener=private) as file:  # it holds what users did
            os.posix_fallocate(file.fileno(), 0, size)
            header = np.array([MAGIC, secrets.randbits(62) + 1, total, slot_bytes, data, 0, 0, 0], np.int64)
            file.write(header.tobytes())
        arena = cls(path)
        arena._table[0, [ROWS, SPAN, STATE]] = 1, 0, DONE
        arena._bytes[data::PAGE] = 0
        return arena

    def close(self) -> None:
        """Let go of it. Views given out before keep the mapping alive until they are gone."""
        del self._bytes, self._table, self._map
        with _threads:  # closing any descriptor of a file gives up this process's lock on it
            self._file.close()

    @contextmanager
    def _locked(self) -> Iterator[NDArray[np.int64]]:
        """The table under both locks; a killed process gives its file lock back by dying."""
        with _threads:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield self._table
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def allocate(self, rows: int, span: int, lengths: ArrayLike | None = None) -> Region:
        """Take `rows` adjacent slots for prompts padded to `span` tokens, HELD by this process. Raises ArenaFull.

        `lengths` int[rows] are the prompts' own; without them they fill their span.
        """
        with self._locked() as table:
            self._reap(table)
            first = _first_run(table[:, STATE] == FREE, rows)
            if first < 0:
                raise ArenaFull(f"kv arena: no {rows} adjacent free slots of {self.slots - 1}")
            block = table[first : first + rows]
            # Random, not counted up: any client can call the inner models, and a handle that could be guessed
            # would let it write into another's request.
            block[:, GENERATION] = [secrets.randbits(63) for _ in range(rows)]
            block[:, [OWNER, STARTED]] = self._me
            block[:, [FIRST, ROWS, SPAN, TURN, BEAMS]] = first, rows, span, 0, 0
            block[:, LENGTH] = span if lengths is None else lengths
            block[:, LEASE] = self._clock() + int(LEASE_S * 1e9)
            block[:, STATE] = HELD
            handles = tuple((self.segment, first + r, int(block[r, GENERATION]), r) for r in range(rows))
        return Region(self._memory(first, rows), rows, span, handles)

    def hold(self, handle: Handle, turn: int | None = None) -> Row:
        """Take a row to work on it. Raises StaleHandle unless the row is IDLE, the handle is its current one, and it
        is this `turn`: how often the row has been put down. Only who reads nothing may leave that out.
        """  # fmt: skip
        if handle == SCRATCH:
            return Row(self._memory(0, 1), 1, 1, 0)
        with self._locked() as table:
            entry = self._entry(table, handle)
            if entry[STATE] != IDLE:
                raise StaleHandle(
                    f"kv: slot {handle[1]} is {('free', 'held', 'idle', 'released')[entry[STATE]]}"
                )
            if turn is not None and entry[TURN] != turn:
                raise StaleHandle(
                    f"kv: slot {handle[1]} waits for {_turn(int(entry[TURN]))}, not for {_turn(turn)}"
                )
            entry[[OWNER, STARTED]] = self._me
            entry[LEASE] = self._clock() + int(LEASE_S * 1e9)
            entry[STATE] = HELD
            first, rows, span, beams, length = (int(x) for x in entry[[FIRST, ROWS, SPAN, BEAMS, LENGTH]])
        return Row(self._memory(first, rows), rows, span, handle[3], length, beams)

    def rest(self, handle: Handle, beams: int | None = None) -> None:
        """Put a held row down for the next turn, with a fresh lease; `beams` is for how many a pass has written.

        Raises StaleHandle when it is not ours.
        """
        self._put(handle, IDLE, beams)

    def release(self, handle: Handle) -> None:
        """Give a held row back for good. Raises StaleHandle when it is not ours."""
        self._put(handle, DONE)

    def _put(self, handle: Handle, state: int, beams: int | None = None) -> None:
        if handle == SCRATCH:
            return
        with self._locked() as table:
            entry = self._entry(table, handle)
            if entry[STATE] != HELD or tuple(entry[[OWNER, STARTED]]) != self._me:
                raise StaleHandle(f"kv: slot {handle[1]} is not held by this process")
            entry[LEASE] = self._clock() + int(LEASE_S * 1e9)
            entry[TURN] += 1
            if beams is not None:
                entry[BEAMS] = beams
            entry[STATE] = state
            if state == DONE:
                _free_finished(table)

    def usage(self) -> dict[str, int]:
        """Rows per state, after reaping: free, held, idle, done."""
        with self._locked() as table:
            self._reap(table)
            counts = np.bincount(table[1:, STATE], minlength=4)
        return dict(zip(("free", "held", "idle", "done"), counts.tolist(), strict=True))

    def _entry(self, table: NDArray[np.int64], handle: Handle) -> NDArray[np.int64]:
        segment, slot, generation, row = handle
        if segment != self.segment or not 0 < slot < self.slots:
            raise StaleHandle(
                f"kv: handle {handle} is of no slot here (accepted: this arena's segment, slots 1 to {self.slots - 1})"
            )
        entry: NDArray[np.int64] = table[slot]
        if entry[GENERATION] != generation or slot - entry[FIRST] != row:
            raise StaleHandle(f"kv: slot {slot} has moved on from generation {generation}")
        return entry

    def _memory(self, first: int, rows: int) -> Bytes:
        start = self._data + first * self.slot_bytes
        return self._bytes[start : start + rows * self.slot_bytes]

    def _reap(self, table: NDArray[np.int64]) -> None:
        """End rows whose lease is over: idle ones, and held ones whose holder has died."""
        over = np.flatnonzero((table[:, LEASE] < self._clock()) & np.isin(table[:, STATE], (HELD, IDLE)))
        for slot in over:
            entry = table[slot]
            if entry[STATE] == IDLE or not lives(int(entry[OWNER]), int(entry[STARTED])):
                entry[STATE] = DONE
                metrics.ARENA_REAPED.add()
        if len(over):
            _free_finished(table)


def _turn(number: int) -> str:
    """Prefill's is turn 0; then beam search and decode take theirs, level by level."""
    if number == 0:
        return "prefill"
    return f"beam_search of level {number // 2 + 1}" if number % 2 else f"decode of level {number // 2}"


def _free_finished(table: NDArray[np.int64]) -> None:
    """Free the DONE rows of regions in which nobody is at work any more (slot 0 stays taken)."""
    working = np.unique(table[np.isin(table[:, STATE], (HELD, IDLE)), FIRST])
    finished = (table[:, STATE] == DONE) & ~np.isin(table[:, FIRST], working)
    finished[0] = False
    table[finished, STATE] = FREE


def _first_run(free: NDArray[np.bool_], length: int) -> int:
    """Start of the first run of `length` True values, or -1."""
    if length > len(free):
        return -1
    total = np.concatenate(([0], np.cumsum(free)))
    runs = np.flatnonzero(total[length:] - total[:-length] == length)
    return int(runs[0]) if len(runs) else -1
