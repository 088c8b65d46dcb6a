"""A pool's memory for who makes ready what is slow when it is first used: a device page-locks all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from genrec.pool.keys import SIZE
from genrec.pool.memory import Bytes
from genrec.pool.pool import Pool

NOBODY = bytes(SIZE)


@contextmanager
def borrowed(pool: Pool, span: int, size: int) -> Iterator[Bytes | None]:
    """uint8[size] in the place of an entry of `span` tokens that never is one; None where an entry had to leave."""
    name = [os.urandom(SIZE)]  # of this rehearsal alone: other processes have theirs at the same time
    writing = pool.write_user(name, span, size, NOBODY) if pool.room(name, size).free else None
    if writing is None:
        yield None
        return
    try:
        yield writing.memory
    finally:
        pool.abandon(writing)
