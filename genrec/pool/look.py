"""What a request would find in a pool, for who has to choose before anything is read."""

from __future__ import annotations

import time

from genrec.pool import items, users
from genrec.pool.keys import Keys, words
from genrec.pool.mapping import Mapping, Table
from genrec.pool.pool import Pool


def look(pool: Pool, hashes: Keys, tokens_per_boundary: int, keys: Keys) -> tuple[int, int]:
    """Tokens of the user that agree with an entry, and items that have a row. Nothing is kept in place or counted."""
    asked, wanted = words(hashes), words(keys)

    def find(mapped: Mapping, table: Table) -> tuple[int, int]:
        entry, boundary = users.find(table, mapped.users, asked, time.monotonic_ns())
        tokens = (
            min(boundary * tokens_per_boundary, int(table.entries[entry, users.SPAN])) if entry >= 0 else 0
        )
        there = int(items.there(table, wanted).sum()) if len(table.row_state) else 0
        return tokens, there

    return pool.locked(find, (0, 0))
