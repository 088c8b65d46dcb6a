"""What is done to users' entries with the table locked, on its arrays: each in one call of compiled code.

With cold caches every call takes as long as what it does, and a request makes several.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool import lead, leaving, space, user_rows
from genrec.pool.index import Places
from genrec.pool.keys import Words
from genrec.pool.mapping import COUNTER, EVER, EVICTIONS, HITS, LEASES_USED, MISSES, PROCESSES, TOKENS
from genrec.pool.memory import Bytes
from genrec.pool.user_rows import (
    BOUNDARIES,
    EXPIRES,
    GENERATION,
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
    Numbers,
    Pins,
    Rows,
)

Said = tuple[int, ...]  # of an entry's row by who takes it


@njit(cache=True, nogil=True)
def find_and_use(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, hashes: Words, step: int, seat: int,
    now: int,
) -> tuple[np.int64, np.int64, np.int64, np.int64]:  # fmt: skip
    """`lead.find`, and what `use` does if that is TRUE: with the tokens that agree."""
    boundary, answer, judged = lead.find(header, users, rows, places, hashes, now)
    header[MISSES] += not boundary
    if not boundary or judged != lead.TRUE:
        return boundary, answer, judged, np.int64(0)
    entry = answer & lead.ENTRY
    tokens = min(boundary * step, rows[entry, SPAN])
    header[HITS] += 1
    header[TOKENS] += tokens
    if user_rows.use(rows, pins, int(entry), seat, now):
        header[LEASES_USED] += 1
        lead.enter_used(users, rows, places, int(entry))
    return boundary, answer, judged, tokens


@njit(cache=True, nogil=True)
def survey(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, key: int, key_2: int, now: int
) -> tuple[bool, Numbers, tuple[Numbers, NDArray[np.float64], Numbers, NDArray[np.uint64]]]:  # fmt: skip
    """`leaving.drop`, then `user_rows.survey`: in one call."""
    dead = np.zeros(PROCESSES, np.bool_)  # as a constant it would be of another type, and all compiled twice
    leaving.drop(header, users, rows, pins, places, dead, now)
    return user_rows.survey(rows[: header[EVER]], pins, key, key_2, now)


@njit(cache=True, nogil=True)
def settle(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, used: Numbers, may: Numbers,
    worth: NDArray[np.float64], total: int, capacity: int, said: Said,
) -> tuple[int, NDArray[np.float64]]:  # fmt: skip
    """A place of `total` bytes among the entries `used` int64[n], of which the numbers `may` int64[m] may leave, worth
    float64[m]: (its entry or -1, what was worth each that had to leave).
    """
    value = np.full(len(used), np.inf)
    starts, sizes = np.empty(len(used), np.int64), np.empty(len(used), np.int64)
    for i in range(len(may)):
        value[may[i]] = worth[i]
    for i in range(len(used)):
        starts[i], sizes[i] = rows[used[i], START], rows[used[i], SIZE]
    offset, least = space.find_place(starts, sizes, value, total, capacity)
    # No row of the table is free: one has to be.
    if offset >= 0 and len(used) == len(rows) and not len(least):
        least = np.array([np.argmin(value)])
    if offset < 0 or (len(least) and value[least[0]] == np.inf):
        return -1, value[:0]
    for i in range(len(least)):
        leaving.end(header, users, rows, pins, places, used[least[i]])
    header[EVICTIONS] += len(least)
    entry = user_rows.first_free(rows[: header[EVER] + 1])
    if entry < 0:
        return -1, value[least]
    header[EVER] = max(header[EVER], entry + 1)
    header[COUNTER] += 1
    row = rows[entry]
    seat, boundaries, span, size, ends, now, owner, owner_2, key, key_2 = said
    row[GENERATION], row[START], row[SIZE], row[WRITER] = header[COUNTER], offset, total, seat
    row[BOUNDARIES], row[SPAN], row[PAYLOAD], row[EXPIRES] = boundaries, span, size, ends
    row[SEEN], row[USES], row[OWNER], row[OWNER_2] = now, 0, owner, owner_2
    row[KEY], row[KEY_2], row[WIPE], row[LIVES] = key, key_2, 0, ends
    row[STATE] = WRITING
    return entry, value[least]


@njit(cache=True, nogil=True)
def take_oldest(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, total: int, capacity: int, said: Said
) -> int:  # fmt: skip
    """`take` by the rule `Recency`, in one call: with cold caches each takes as long as what it does."""
    now, key, key_2 = said[5], said[8], said[9]
    known, used, (may, age, _, _) = survey(header, users, rows, pins, places, key, key_2, now)
    if known:
        return -1
    return settle(header, users, rows, pins, places, used, may, -age, total, capacity, said)[0]


@njit(cache=True, nogil=True)
def show(
    header: Numbers, users: Bytes, rows: Rows, pins: Pins, places: Places, entry: int, generation: int, seat: int,
    hashes: Words, until: int,
) -> bool:  # fmt: skip
    """`publish` on the arrays of a table; whether the row is whole."""
    row = rows[entry]
    if not (row[STATE] == WRITING and row[GENERATION] == generation and row[WRITER] == seat):
        return True
    row[EXPIRES] = min(until, row[LIVES])
    if row[WIPE]:  # its owner was forgotten meanwhile
        leaving.vacate(users, rows, entry)
        return True
    if not lead.write(header, users, rows, entry, hashes):
        return False
    row[STATE] = READY
    held = lead.enter(rows, places, entry, hashes)
    for i in range(len(held)):  # what was used stays for a visit, whatever becomes of who brought more
        row[EXPIRES] = max(row[EXPIRES], rows[held[i], EXPIRES])
        row[LIVES] = max(row[LIVES], row[EXPIRES])
        leaving.end(header, users, rows, pins, places, held[i])
    return True
