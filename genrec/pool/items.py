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
from genrec.pool.coldest import FILLING, FREE, HALF_LIFE_S, READY, Heat, coldest
from genrec.pool.index import Places
from genrec.pool.keys import Words
from genrec.pool.mapping import COUNTER, ITEM_EVICTIONS, ITEM_HITS, ITEM_MISSES, PoolTable

# What nobody waits for takes the place of what is colder by so much: neither takes it back from the other.
WARMER, MORE = 1.5, 0.5
Rows = NDArray[np.int32]
Generations = NDArray[np.int64]
NONE: Rows = np.zeros(0, np.int32)
UNASKED: Heat = np.zeros(0)


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
        if row < 0 or row >= len(state) or state[row] != READY:
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
    table: PoolTable, keys: Words, seat: int, now: int, heat: Heat | None = None, spared: Rows = NONE
) -> Rows:  # fmt: skip
    """int32[n]: a row to fill for each key; -1 where somebody has it or fills it, or no row may leave.

    `heat` float64[n] is of items that nobody waits for: the hottest come first, and only colder rows leave for them.
    `spared` int32[m] are rows that do not leave: whoever asks is about to read them.
    """
    order = slice(None) if heat is None else np.argsort(-heat, kind="stable")
    rows = np.empty(len(keys), np.int32)
    rows[order] = fill(
        table.header, table.item_index, keys[order], table.row_state, table.row_key, table.row_heat, table.row_seen,
        table.row_generation, table.row_writer, seat, now, UNASKED if heat is None else heat[order], spared,
    )  # fmt: skip
    return rows


@njit(cache=True, nogil=True)
def fill(
    header: NDArray[np.int64], places: Places, keys: Words, state: NDArray[np.int8], held: Words,
    heat: NDArray[np.float32], seen: NDArray[np.int64], generation: Generations, writer: NDArray[np.int8], seat: int,
    now: int, wanted_heat: Heat, spared: Rows,
) -> Rows:  # fmt: skip
    """`take` on the arrays of a table; where items have heat, the hottest come first."""
    rows, known = np.full(len(keys), -1, np.int32), present(places, keys, state, held)
    chosen, cold = coldest(state, heat, seen, len(keys) - known.sum(), now, spared)
    filled = 0
    for i in range(len(keys)):
        if known[i]:
            continue
        if filled == len(chosen):
            break
        row, first, second = chosen[filled], keys[i, 0], keys[i, 1]
        if len(wanted_heat) and not wanted_heat[i] > WARMER * cold[filled] + MORE:
            break  # the rows that follow are warmer, and what is wanted colder
        if has(places, first, second, state, held):
            continue  # it is among the keys twice
        header[ITEM_EVICTIONS] += state[row] == READY
        free(header, places, state, held, generation, row)
        held[row, 0], held[row, 1] = first, second
        writer[row], seen[row] = seat, now
        heat[row] = wanted_heat[i] if len(wanted_heat) else 1
        state[row] = FILLING
        index.put_one(places, first, second, np.int64(row))
        rows[i], filled = row, filled + 1
    return rows


@njit(cache=True, nogil=True)
def free(
    header: NDArray[np.int64], places: Places, state: NDArray[np.int8], held: Words, generation: Generations, row: int
) -> None:  # fmt: skip
    """The row is nobody's. Its generation changes first: a reader that comes later sees that it did.

    Each is given once, though a process may die between any two lines.
    """
    header[COUNTER] += 1
    generation[row] = header[COUNTER]
    taken = state[row] != FREE
    state[row] = FREE
    if taken:
        index.remove_one(places, held[row, 0], held[row, 1], np.int64(row))


def there(table: PoolTable, keys: Words) -> NDArray[np.bool_]:
    """Which keys have a row, READY or on its way."""
    return present(table.item_index, keys, table.row_state, table.row_key)


@njit(cache=True, nogil=True)
def present(places: Places, keys: Words, state: NDArray[np.int8], held: Words) -> NDArray[np.bool_]:
    """`there` on the arrays of a table."""
    found = np.zeros(len(keys), np.bool_)
    for i in range(len(keys)):
        found[i] = has(places, keys[i, 0], keys[i, 1], state, held)
    return found


@njit(cache=True, nogil=True)
def has(places: Places, first: np.uint64, second: np.uint64, state: NDArray[np.int8], held: Words) -> bool:
    """Whether a key has a row, READY or on its way."""
    row = index.find_one(places, first, second)
    if not 0 <= row < len(state) or state[row] == FREE:
        return False
    return held[row, 0] == first and held[row, 1] == second


def clear(table: PoolTable, rows: NDArray[np.integer[Any]]) -> None:
    """The rows are nobody's."""
    arrays = table.header, table.item_index, table.row_state, table.row_key, table.row_generation
    for row in rows.tolist():
        free(*arrays, row)


def publish(table: PoolTable, rows: Rows, generations: Generations, seat: int) -> None:
    """FILLING to READY, of rows that are still this process's."""
    show(table.row_state, table.row_writer, table.row_generation, rows, generations, seat)


@njit(cache=True, nogil=True)
def show(
    state: NDArray[np.int8], writer: NDArray[np.int8], generation: Generations, rows: Rows, generations: Generations,
    seat: int,
) -> None:  # fmt: skip
    """`publish` on the arrays of a table."""
    for i in range(len(rows)):
        row = rows[i]
        if state[row] == FILLING and writer[row] == seat and generation[row] == generations[i]:
            state[row] = READY


def give_up(table: PoolTable, rows: Rows, generations: Generations, seat: int) -> None:
    """FILLING to FREE, of rows that are still this process's."""
    filling = (table.row_state[rows] == FILLING) & (table.row_writer[rows] == seat)
    clear(table, rows[filling & (table.row_generation[rows] == generations)])


def sweep(table: PoolTable, dead: list[int]) -> None:
    """Take back rows whose filler has died (by seat)."""
    clear(table, np.flatnonzero((table.row_state == FILLING) & np.isin(table.row_writer, dead)))
