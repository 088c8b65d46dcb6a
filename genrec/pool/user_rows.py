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


@njit(cache=True, nogil=True)
def used(rows: Rows) -> Numbers:
    """Which are not free."""
    return np.flatnonzero(rows[:, STATE] != FREE)


@njit(cache=True, nogil=True)
def ready(rows: Rows) -> Numbers:
    """Which can be found."""
    return np.flatnonzero(rows[:, STATE] == READY)


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
def standing(
    rows: Rows, pins: Pins, of: Numbers, now: int
) -> tuple[Numbers, NDArray[np.float64], Numbers, NDArray[np.uint64]]:
    """Which of the entries `of` int64[n] are READY and read by nobody, int64[m]; seconds since they were last used,
    their spans and their owners uint64[m, 2].
    """  # fmt: skip
    may, age = np.empty(len(of), np.int64), np.empty(len(of), np.float64)
    spans, owners = np.empty(len(of), np.int64), np.empty((len(of), 2), np.uint64)
    count = 0
    for i in range(len(of)):
        row = rows[of[i]]
        if row[STATE] == READY and not pinned(pins, of[i]):
            may[count], age[count], spans[count] = i, (now - row[SEEN]) / 1e9, row[SPAN]
            owners[count, 0], owners[count, 1] = np.uint64(row[OWNER]), np.uint64(row[OWNER_2])
            count += 1
    return may[:count], age[:count], spans[:count], owners[:count]


@njit(cache=True, nogil=True)
def survey(
    rows: Rows, pins: Pins, key: int, key_2: int, now: int
) -> tuple[bool, Numbers, tuple[Numbers, NDArray[np.float64], Numbers, NDArray[np.uint64]]]:
    """Whether a key is `known`, which entries are `used`, and what is `standing` of them."""
    of = used(rows)
    return known(rows, key, key_2), of, standing(rows, pins, of, now)


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
