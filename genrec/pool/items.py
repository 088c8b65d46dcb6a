"""Rows of items: KV of one item each, all of one size, read by row number.

A row is FREE, FILLING while a process computes it, or READY. Nobody counts its readers: its generation changes before
its bytes do, so who has read the generations with the rows, and finds them unchanged after the pass, has read whole
rows. Cold rows leave first: a row's heat is how often it was asked for, halved every ten minutes.

The functions here work on a table that is locked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool import index
from genrec.pool.index import Places
from genrec.pool.keys import Words
from genrec.pool.mapping import COUNTER, ITEM_EVICTIONS, ITEM_HITS, ITEM_MISSES, PoolTable

FREE, FILLING, READY = range(3)
HALF_LIFE_S = 600.0
LOOKED_AT = 64  # rows per row wanted: in a large pool the coldest of a sample leave, as Redis does
FEW = 1 << 16  # rows that are all looked at
# What nobody waits for takes the place of what is colder by so much: neither takes it back from the other.
WARMER, MORE = 1.5, 0.5
Rows = NDArray[np.int32]
Generations = NDArray[np.int64]
NONE: Rows = np.zeros(0, np.int32)


def find(table: PoolTable, keys: Words, now: int) -> tuple[Rows, Generations]:
    """int32[C], -1 where absent, and int64[C]; who is asked for grows hotter."""
    return look_up(
        table.header, table.item_index, keys, table.row_state, table.row_key, table.row_heat, table.row_seen,
        table.row_generation, now,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def look_up(
    header: NDArray[np.int64], places: Places, keys: Words, state: NDArray[np.int8], held: Words,
    heat: NDArray[np.float32], seen: NDArray[np.int64], generation: Generations, now: int,
) -> tuple[Rows, Generations]:  # fmt: skip
    """`find` on the arrays of a table, in one call: with cold caches every call of NumPy takes longer than this."""
    rows, generations = np.full(len(keys), -1, np.int32), np.full(len(keys), -1, np.int64)
    answers = index.find(places, keys)
    for i in range(len(keys)):
        row = answers[i]
        if row < 0 or row >= len(state) or state[row] != 2:  # READY
            continue
        if held[row, 0] == keys[i, 0] and held[row, 1] == keys[i, 1]:
            heat[row] = heat[row] * 0.5 ** ((now - seen[row]) / (HALF_LIFE_S * 1e9)) + 1
            seen[row] = now
            rows[i] = row
            generations[i] = generation[row]
    hits = (rows >= 0).sum()
    header[ITEM_HITS] += hits
    header[ITEM_MISSES] += len(rows) - hits
    return rows, generations


@njit(cache=True, nogil=True)
def unchanged(generation: Generations, rows: Rows, generations: Generations) -> bool:
    """Whether each of the rows has still its generation; where that is -1 there is no row."""
    for i in range(len(rows)):
        if generations[i] >= 0 and not (rows[i] < len(generation) and generation[rows[i]] == generations[i]):
            return False
    return True


def take(
    table: PoolTable, keys: Words, seat: int, now: int, heat: NDArray[np.float64] | None = None, spared: Rows = NONE
) -> Rows:  # fmt: skip
    """int32[n]: a row to fill for each key; -1 where somebody has it or fills it, or no row may leave.

    `heat` float64[n] is of items that nobody waits for: the hottest come first, and only colder rows leave for them.
    `spared` int32[m] are rows that do not leave: whoever asks is about to read them.
    """
    rows = np.full(len(keys), -1, np.int32)
    _, first = np.unique(keys, axis=0, return_index=True)
    wanted = np.sort(first[~there(table, keys[first])])
    chosen, cold = _coldest(table, len(wanted), now, spared)
    if heat is not None:
        wanted = wanted[np.argsort(-heat[wanted], kind="stable")]
        chosen = chosen[
            heat[wanted[: len(chosen)]] > WARMER * cold + MORE
        ]  # the first ones: cold ones are first
    wanted = wanted[: len(chosen)]
    table.header[ITEM_EVICTIONS] += int((table.row_state[chosen] == READY).sum())
    clear(table, chosen)
    table.row_key[chosen] = keys[wanted]
    table.row_writer[chosen], table.row_seen[chosen] = seat, now
    table.row_heat[chosen] = 1 if heat is None else heat[wanted]
    table.row_state[chosen] = FILLING
    index.put(table.item_index, keys[wanted], chosen)
    rows[wanted] = chosen
    return rows


def there(table: PoolTable, keys: Words) -> NDArray[np.bool_]:
    """Which keys have a row, READY or on its way."""
    return present(table.item_index, keys, table.row_state, table.row_key)


@njit(cache=True, nogil=True)
def present(places: Places, keys: Words, state: NDArray[np.int8], held: Words) -> NDArray[np.bool_]:
    """`there` on the arrays of a table."""
    found, answers = np.zeros(len(keys), np.bool_), index.find(places, keys)
    for i in range(len(keys)):
        row = answers[i]
        if 0 <= row < len(state) and state[row] != FREE:
            found[i] = held[row, 0] == keys[i, 0] and held[row, 1] == keys[i, 1]
    return found


def _coldest(
    table: PoolTable, count: int, now: int, spared: Rows
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Up to `count` rows and their heat: free ones, which have none at all, then the coldest READY ones."""
    state = table.row_state
    chosen = np.flatnonzero(state == FREE)[:count]
    missing, free = count - len(chosen), np.full(len(chosen), -np.inf)
    if not missing:
        return chosen, free
    looked_at = np.arange(len(state))
    if len(state) > max(FEW, LOOKED_AT * missing):
        looked_at = np.unique(np.random.default_rng().integers(0, len(state), LOOKED_AT * missing))
    ready = looked_at[state[looked_at] == READY]
    ready = ready[~np.isin(ready, spared)]
    cold = table.row_heat[ready] * 0.5 ** ((now - table.row_seen[ready]) / (HALF_LIFE_S * 1e9))
    coldest = np.argsort(cold, kind="stable")[:missing]
    return np.concatenate((chosen, ready[coldest])), np.concatenate((free, cold[coldest]))


def clear(table: PoolTable, rows: NDArray[np.integer[Any]]) -> None:
    """The rows are nobody's. Their generations change first: a reader that comes later sees that they did.

    Each is given once, though a process may die between any two lines.
    """
    given = table.header[COUNTER] + 1 + np.arange(len(rows))
    table.header[COUNTER] += len(rows)
    table.row_generation[rows] = given
    taken = rows[table.row_state[rows] != FREE]
    table.row_state[rows] = FREE
    index.remove(table.item_index, table.row_key[taken], taken.astype(np.int64))


def publish(table: PoolTable, rows: Rows, generations: NDArray[np.int64], seat: int) -> None:
    """FILLING to READY, of rows that are still this process's."""
    table.row_state[_own(table, rows, generations, seat)] = READY


def give_up(table: PoolTable, rows: Rows, generations: NDArray[np.int64], seat: int) -> None:
    """FILLING to FREE, of rows that are still this process's."""
    clear(table, _own(table, rows, generations, seat))


def _own(table: PoolTable, rows: Rows, generations: NDArray[np.int64], seat: int) -> Rows:
    filling = (table.row_state[rows] == FILLING) & (table.row_writer[rows] == seat)
    return rows[filling & (table.row_generation[rows] == generations)]


def sweep(table: PoolTable, dead: list[int]) -> None:
    """Take back rows whose filler has died (by seat)."""
    clear(table, np.flatnonzero((table.row_state == FILLING) & np.isin(table.row_writer, dead)))
