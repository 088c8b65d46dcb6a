"""The table of users' entries, a row each: its words, and what is looked for in all rows at once.

Compiled: these run with the table locked, and a request's other steps take little longer.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool.mapping import EVER, PoolTable

FREE, WRITING, READY, LEAVING = range(4)
(STATE, GENERATION, START, SIZE, WRITER, BOUNDARIES, SPAN, PAYLOAD, EXPIRES, SEEN, USES, OWNER, OWNER_2, KEY, KEY_2,
 WIPE, LIVES) = range(17)  # fmt: skip
Rows = NDArray[np.int64]  # [E, words]
Numbers = NDArray[np.int64]
Pins = NDArray[np.int16]  # [E, processes]
HEADER_BYTES = 64  # before the hashes of an entry


def ever_used(table: PoolTable) -> Rows:
    """Rows of those that are in use or were."""
    return table.entries[: table.header[EVER]]


def used_entries(table: PoolTable) -> NDArray[np.int64]:
    """Those that are not free."""
    return used(ever_used(table))


def answers(entry: int, boundaries: int) -> NDArray[np.int64]:
    """What the index says of each boundary but the first."""
    return (np.arange(1, boundaries, dtype=np.int64) << 32) | entry


@njit(cache=True, nogil=True)
def used(rows: Rows) -> Numbers:
    """Which are not free."""
    return np.flatnonzero(rows[:, STATE] != FREE)


@njit(cache=True, nogil=True)
def first_free(rows: Rows) -> int:
    """The first that is free, or -1."""
    for entry in range(len(rows)):
        if rows[entry, STATE] == FREE:
            return entry
    return -1


@njit(cache=True, nogil=True)
def known(rows: Rows, key: int, key_2: int) -> bool:
    """Whether somebody has or computes what is called so."""
    for entry in range(len(rows)):
        row = rows[entry]
        if row[KEY] == key and row[KEY_2] == key_2 and (row[STATE] == WRITING or row[STATE] == READY):
            return True
    return False


@njit(cache=True, nogil=True)
def pinned(pins: Pins, entry: int) -> bool:
    """Whether somebody reads it."""
    return bool(pins[entry].any())


@njit(cache=True, nogil=True)
def use(rows: Rows, pins: Pins, entry: int, seat: int, now: int) -> bool:
    """One reader more of a process: it is newer, and no longer on a lease; whether it was on one."""
    row = rows[entry]
    row[SEEN] = now
    row[USES] += 1
    pins[entry, seat] += 1
    leased = row[EXPIRES] < row[LIVES]
    row[EXPIRES] = max(row[EXPIRES], row[LIVES])
    return bool(leased)


@njit(cache=True, nogil=True)
def unpin(rows: Rows, pins: Pins, entry: int, generation: int, seat: int) -> bool:
    """One reader less of a process; whether it was the last of an entry that leaves."""
    if rows[entry, GENERATION] != generation or not pins[entry, seat]:
        return False
    pins[entry, seat] -= 1
    return rows[entry, STATE] == LEAVING and not pinned(pins, entry)


@njit(cache=True, nogil=True)
def unread(rows: Rows, pins: Pins, of: Numbers) -> NDArray[np.bool_]:
    """bool[n]: which entries `of` int64[n] are READY and read by nobody."""
    found = np.zeros(len(of), np.bool_)
    for i in range(len(of)):
        found[i] = rows[of[i], STATE] == READY and not pinned(pins, of[i])
    return found


@njit(cache=True, nogil=True)
def over(rows: Rows, pins: Pins, dead: NDArray[np.bool_], now: int) -> Numbers:
    """Entries whose writer is `dead` bool[processes], that have expired at `now`, or that nobody reads any more."""
    found = np.zeros(len(rows), np.bool_)
    for entry in range(len(rows)):
        row = rows[entry]
        if row[STATE] == WRITING:
            found[entry] = 0 <= row[WRITER] < len(dead) and dead[row[WRITER]]
        elif row[STATE] == READY:
            found[entry] = row[EXPIRES] <= now
        elif row[STATE] == LEAVING:
            found[entry] = not pinned(pins, entry)
    return np.flatnonzero(found)
