"""Deleting what a pool keeps of a user, for who asks that: neither his entries nor what is left of them stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from genrec.pool import leaving, mapping
from genrec.pool.hotness import Hotness
from genrec.pool.keys import words
from genrec.pool.mapping import Mapping, PoolTable
from genrec.pool.pool import Pool
from genrec.pool.user_rows import FREE, SIZE, START, STATE, ever_used

PIECE = 8 << 20  # bytes that are cleared under one lock: a millisecond or two


Reach = Callable[[Callable[[], Any]], Any]


def _once(work: Callable[[], Any]) -> Any:
    return work()


def forget(pool: Pool, owner: bytes, reach: Reach = _once) -> int | None:
    """Delete a user's entries (`keys.owner_key`); their bytes are cleared when the last reader releases them.

    How many; None where the table was not to be had, so that not all was done. `reach` says what work on the table
    answers, None where that was not to be had, and may try it again: it can be busy between two pieces of the work, and
    who began from the start would count nothing of what is deleted already. Bytes that no entry holds are cleared too:
    entries of his may have been replaced, or have expired.
    """
    whose = words([owner])

    def drop(mapped: Mapping, table: PoolTable) -> tuple[int, int]:
        pool.tidy(mapped, table)
        Hotness(mapped.hotness).forget(whose[0])
        table.header[mapping.FORGOTTEN] += 1  # a second tier looks for it
        table.header[mapping.FORGOT_NS] = time.monotonic_ns()
        return leaving.forget(table, mapped.users, whose), len(mapped.users)

    found = reach(lambda: pool.locked(drop, None))
    if found is None:
        return None
    (deleted, size), start = found, 0
    while start is not None and start < size:
        start = reach(partial(pool.locked, partial(_clear, start), None))
    return None if start is None else deleted


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
