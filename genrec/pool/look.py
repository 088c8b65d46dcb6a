"""What a request would find in a pool, for who has to choose before anything is read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.pool import items, user_rows, users
from genrec.pool.keys import Keys, Words, words
from genrec.pool.mapping import Mapping, PoolTable
from genrec.pool.pool import Pool

MANY = 4096  # keys that are looked for under one lock: less than a millisecond


def look(pool: Pool, hashes: Keys, tokens_per_boundary: int, keys: Keys) -> tuple[int, int]:
    """Tokens of the user that agree with an entry, and items that have a row. Nothing is kept in place or counted."""
    asked, wanted = words(hashes), words(keys)

    def find(mapped: Mapping, table: PoolTable) -> tuple[int, int]:
        tokens, _ = _agreeing(mapped, table, asked, tokens_per_boundary, pool.clock())
        there = int(items.there(table, wanted).sum()) if len(table.row_state) else 0
        return tokens, there

    return pool.locked(find, (0, 0))


def absent(pool: Pool, keys: Words) -> NDArray[np.bool_]:
    """bool[n]: which items have no row, nor one on its way; all of a pool that is lost. Nothing grows hotter."""

    def look_for(part: Words) -> NDArray[np.bool_]:
        return pool.locked(lambda _, table: ~items.there(table, part), np.ones(len(part), bool))

    parts = [keys[start : start + MANY] for start in range(0, len(keys), MANY)]
    return np.concatenate([np.ones(0, bool), *map(look_for, parts)])


def hold(pool: Pool, hashes: Words, tokens_per_boundary: int, lease_s: float) -> int:
    """Tokens of the user that agree with an entry, which stays for `lease_s` more unless its place is needed."""

    def find(mapped: Mapping, table: PoolTable) -> int:
        now = pool.clock()
        tokens, entry = _agreeing(mapped, table, hashes, tokens_per_boundary, now)
        if entry >= 0:
            row = table.entries[entry]
            row[user_rows.SEEN] = now
            row[user_rows.EXPIRES] = min(
                max(row[user_rows.EXPIRES], now + int(lease_s * 1e9)), row[user_rows.LIVES]
            )
        return tokens

    return pool.locked(find, 0)


def _agreeing(mapped: Mapping, table: PoolTable, hashes: Words, step: int, now: int) -> tuple[int, int]:
    """Tokens that agree with an entry, and the entry; (0, -1) where there is none."""
    entry, boundary = users.find(table, mapped.users, hashes, now)
    if entry < 0:
        return 0, -1
    return min(boundary * step, int(table.entries[entry, user_rows.SPAN])), entry
