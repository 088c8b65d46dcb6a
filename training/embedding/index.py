"""Ids to rows: open addressing that doubles without a pause (MTGRBoost, section 4.1)."""

from __future__ import annotations

import numpy as np

from training.embedding.arrays import LINE, NO_LINES, Int32, Int64, Lines
from training.embedding.kernels import Kernels

MAX_LOAD = 0.75  # keys per slot at which the table doubles
MOVED = 8  # lines per id inserted while the table doubles: until that is done, a new id is looked for in both
NEXT_FROM = 0.70  # keys per slot from which on the next lines are made ready
PAGE = 4096  # bytes
MOST_ROWS = 2**31 - 2  # a slot holds row + 1 in 32 bits
HELD, GIVEN, FREE, FRESH = range(4)  # of `state`, as in kernels.cpp
KEY_SIGN = np.uint64(1 << 63)


class Index:
    """Int64 ids, each with a row; rows of removed ids are given again.

    While it doubles, `old` keeps the ids that have not moved yet: every insert moves a few lines on. An id that stands
    in both has the same row in both, so nobody needs to know how far the move is.
    """

    def __init__(self, kernels: Kernels, room: int = 0) -> None:
        """Lines for `room` ids, so that it does not grow before."""
        self._kernels = kernels
        bits = max(int(np.ceil(np.log2(max(room, 1) / (LINE * MAX_LOAD)))), 0)
        self.lines, self.old, self._moved = Lines.empty(bits), NO_LINES, 0
        self._next, self._ready = NO_LINES, 0.0  # the lines to come, and which share of their pages is there
        self._state, self._free = np.zeros(4, np.int64), np.empty(0, np.int32)

    def __len__(self) -> int:
        return int(self._state[HELD])

    @property
    def rows_given(self) -> int:
        """Rows that were ever given: all rows are below."""
        return int(self._state[GIVEN])

    @property
    def nbytes(self) -> int:
        """Of the slots, those being left and those to come included, and of the list of free rows."""
        return self.lines.nbytes + self.old.nbytes + int(self._next.nbytes * self._ready) + self._free.nbytes

    def find(self, ids: Int64) -> Int32:
        """Rows int32[n] of ids int64[n], -1 where absent."""
        return self._kernels.find(ids, self.lines, self.old)

    def insert(self, ids: Int64) -> tuple[Int32, Int64]:
        """Rows int32[n] of ids int64[n], and the places of ids that are new, each once."""
        rows, fresh, done = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64), 0
        self._state[FRESH] = 0
        self._move_on(MOVED * len(ids))
        self._make_next_ready()
        while True:
            new = fresh[self._state[FRESH] :]
            before, self._state[FRESH] = self._state[FRESH], 0
            at = self._kernels.insert(
                ids[done:], self.lines, self.old, int(self.lines.slots * MAX_LOAD), self._free, self._state,
                rows[done:], new,
            )  # fmt: skip
            new[: self._state[FRESH]] += done
            self._state[FRESH] += before
            done += at
            if done == len(ids):
                return rows, fresh[: self._state[FRESH]]
            self._double()
            self._move_on(MOVED * (len(ids) - done))

    def remove(self, rows: Int32) -> None:
        """Forget the ids of `rows`, distinct; their rows are free. Writes the lines anew, as probing needs."""
        self._move_on(1 << self.old.bits)
        drop = np.zeros(self.rows_given, np.uint8)
        drop[rows] = 1
        kept = Lines.empty(self.lines.bits)
        self._kernels.move(self.lines, 0, 1 << self.lines.bits, drop, kept)
        self.lines = kept
        self._state[HELD] -= len(rows)
        self._free = np.concatenate((self._free[: self._state[FREE]], rows))
        self._state[FREE] = len(self._free)

    def items(self) -> tuple[Int64, Int32]:
        """All ids int64[len] and their rows int32[len], by row."""
        self._move_on(1 << self.old.bits)
        slots = np.flatnonzero(self.lines.rows)
        rows = self.lines.rows[slots] - 1
        order = np.argsort(rows, kind="stable")
        return (self.lines.keys[slots] ^ KEY_SIGN).view(np.int64)[order], rows[order]

    def _double(self) -> None:
        following = self._next if self._next.slots else Lines.empty(self.lines.bits + 1)
        self.old, self.lines, self._moved = self.lines, following, 0
        self._next, self._ready = NO_LINES, 0.0

    def _make_next_ready(self) -> None:
        """Touch some pages of the lines to come: a batch that met them all fresh would wait for all to be zeroed."""
        since = self.lines.slots * NEXT_FROM
        ready = min((len(self) - since) / (self.lines.slots * MAX_LOAD - since), 1.0)
        if ready <= self._ready:
            return
        if not self._next.slots:
            self._next = Lines.empty(self.lines.bits + 1)
        for values in (self._next.keys, self._next.rows):
            pages = values.nbytes / PAGE
            values.view(np.uint8)[int(pages * self._ready) * PAGE : int(pages * ready) * PAGE : PAGE] = 0
        self._ready = ready

    def _move_on(self, lines: int) -> None:
        """Move some lines of `old`. One per id inserted would be enough to be done before the next doubling."""
        if not self.old.slots:
            return
        last = min(self._moved + max(lines, LINE), 1 << self.old.bits)
        self._kernels.move(self.old, self._moved, last, None, self.lines)
        self._moved = last
        if last == 1 << self.old.bits:
            self.old = NO_LINES
