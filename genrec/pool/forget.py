"""Deleting what a pool keeps of a user, for who asks that: neither his entries nor what is left of them stays."""

from __future__ import annotations

import time
from functools import partial

from genrec.pool import leaving, mapping
from genrec.pool.hotness import Hotness
from genrec.pool.keys import words
from genrec.pool.mapping import Mapping, PoolTable
from genrec.pool.pool import Pool
from genrec.pool.user_rows import FREE, SIZE, START, STATE, ever_used

PIECE = 8 << 20  # bytes that are cleared under one lock: a millisecond or two


def forget(pool: Pool, owner: bytes) -> int | None:
    """Delete a user's entries (`keys.owner_key`); their bytes are cleared when the last reader releases them.

    How many; None where the table was not to be had, so that not all was done: ask again. Bytes that no entry holds
    are cleared too: entries of his may have been replaced, or have expired.
    """
    whose = words([owner])

    def drop(mapped: Mapping, table: PoolTable) -> tuple[int, int]:
        pool.tidy(mapped, table)
        Hotness(mapped.hotness).forget(whose[0])
        table.header[mapping.FORGOTTEN] += 1  # a second tier looks for it
        table.header[mapping.FORGOT_NS] = time.monotonic_ns()
        return leaving.forget(table, mapped.users, whose), len(mapped.users)

    found = pool.locked(drop, None)
    if found is None:
        return None
    (deleted, size), start = found, 0
    while 0 <= start < size:
        start = pool.locked(partial(_clear, start), -1)
    return deleted if start >= 0 else None


def _clear(start: int, mapped: Mapping, table: PoolTable) -> int:
    """Clear a piece of the users' memory but for entries in it; where the next one begins."""
    end, rows = min(start + PIECE, len(mapped.users)), ever_used(table)
    held = rows[:, START] + rows[:, SIZE] > start
    held &= (rows[:, START] < end) & (rows[:, STATE] != FREE)
    opens = start
    for first, size in sorted(rows[held][:, [START, SIZE]].tolist()):
        mapped.users[opens : max(first, opens)] = 0
        opens = first + size
    if opens < end:
        mapped.users[opens:end] = 0
    return end
