"""How entries of users end: no longer found, and free as soon as nobody reads or writes them.

The functions here work on a table that is locked. The compiled ones take its arrays: a request that makes room for an
entry runs them among others in one call.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool import lead, user_rows
from genrec.pool.index import Places
from genrec.pool.keys import Words
from genrec.pool.mapping import EVER, LEASES_UNUSED, PoolTable
from genrec.pool.memory import Bytes
from genrec.pool.user_rows import (
    EXPIRES,
    FREE,
    LEAVING,
    LIVES,
    OWNER,
    OWNER_2,
    READY,
    SIZE,
    START,
    STATE,
    WIPE,
    Numbers,
    Pins,
    Rows,
    used_entries,
)


def leave(table: PoolTable, users: Bytes, entry: int) -> None:
    """No longer found; free as soon as nobody reads it."""
    end(table.header, users, table.entries, table.pins, table.user_index, entry)


@njit(cache=True, nogil=True)
def end(header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, entry: int) -> None:
    """`leave` on the arrays of a table."""
    _close(header, rows[entry])
    lead.withdraw(users, rows, places, entry, user_rows.ready(rows[: header[EVER]]))
    if not user_rows.pinned(pins, entry):
        vacate(users, rows, entry)


@njit(cache=True, nogil=True)
def _close(header: Numbers, row: Numbers) -> None:
    header[LEASES_UNUSED] += np.int64(row[EXPIRES] < row[LIVES])
    row[STATE] = LEAVING


def free(table: PoolTable, users: Bytes, entry: int) -> None:
    """Nobody reads it and its place is another's."""
    vacate(users, table.entries, entry)


@njit(cache=True, nogil=True)
def vacate(users: Bytes, rows: Rows, entry: int) -> None:
    """`free` on the arrays of a table."""
    row = rows[entry]
    if row[WIPE]:
        users[row[START] : row[START] + row[SIZE]] = 0
    row[STATE] = FREE


def unpin(table: PoolTable, users: Bytes, entry: int, generation: int, seat: int) -> None:
    """One reader less of a process."""
    if user_rows.unpin(table.entries, table.pins, entry, generation, seat):
        free(table, users, entry)


def forget(table: PoolTable, users: Bytes, owner: Words) -> int:
    """Delete what is an owner's; what is read or written at the moment goes when that ends. How many there were."""
    rows = table.entries
    used = used_entries(table)
    his = used[(rows[used[:, None], [OWNER, OWNER_2]] == owner.view(np.int64)).all(1)]
    rows[his, WIPE] = 1
    for entry in his[rows[his, STATE] == READY]:
        leave(table, users, int(entry))
    return len(his)


def sweep(table: PoolTable, users: Bytes, dead: list[int], now: int) -> None:
    """Take back what dead processes held (by seat), what has expired, and what nobody reads any more."""
    gone = np.zeros(table.pins.shape[1], bool)
    if dead:
        table.pins[:, dead] = 0
        gone[dead] = True
    drop(table.header, users, table.entries, table.pins, table.user_index, gone, now)


@njit(cache=True, nogil=True)
def drop(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, dead: NDArray[np.bool_], now: int
) -> None:  # fmt: skip
    """End what is `user_rows.over`, on the arrays of a table; `dead` bool[processes]."""
    found = user_rows.over(rows[: header[EVER]], pins, dead, now)
    ended = found[rows[found, STATE] == READY]
    for entry in ended:  # all, before one leaves its places to another
        _close(header, rows[entry])
    others = user_rows.ready(rows[: header[EVER]])
    for entry in ended:
        lead.withdraw(users, rows, places, entry, others)
    for entry in found:
        if not user_rows.pinned(pins, entry):
            vacate(users, rows, entry)
