# ruff: noqa: D102  (the methods are documented in compiled.py)
"""The kernels of a dynamic table where there is no compiler: numba for the index, NumPy for rows in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from training.embedding.arrays import LARGEST, LINE, Chunks, Float32, Int32, Int64, Lines

SIGN, GOLDEN = np.uint64(1 << 63), np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
SHIFT, LOW = np.uint64(33), np.uint64(0xFFFFFFFF)


class Portable:
    """What `training.embedding.compiled.Compiled` does, method by method."""

    name = "numba"

    def find(self, ids: Int64, lines: Lines, old: Lines) -> Int32:
        rows = np.empty(len(ids), np.int32)
        _find(ids, lines, old, rows)
        return rows

    def insert(
        self, ids: Int64, lines: Lines, old: Lines, room: int, free: Int32, state: Int64,
        rows: Int32, fresh: Int64,
    ) -> int:  # fmt: skip
        return _insert(ids, lines, old, room, free, state, rows, fresh)

    def move(
        self, source: Lines, first: int, last: int, drop: NDArray[np.uint8] | None, lines: Lines
    ) -> None:
        _move(source, first, last, np.zeros(0, np.uint8) if drop is None else drop, lines)

    def probes(self, key: int, bits: int) -> Int64:
        lines = np.empty(1 << bits, np.int64)
        _probes(key, bits, lines)
        return lines

    def unique(self, ids: Int64) -> tuple[Int64, Int64]:
        bits = max(2 * len(ids), 2).bit_length()
        distinct, inverse = np.empty_like(ids), np.empty(len(ids), np.int64)
        return distinct[: _unique(ids, np.zeros(1 << bits, np.int32), bits, distinct, inverse)], inverse

    def by_owner(self, ids: Int64, ranks: int) -> tuple[Int64, Int64]:
        owners = (mixed(ids) % np.uint64(ranks)).astype(np.int64)
        return np.argsort(owners, kind="stable"), np.bincount(owners, minlength=ranks)

    def add_by(self, values: Float32, index: Int64, sums: Float32) -> None:
        _add_by(values, index, sums)

    def sound(self, values: Float32) -> bool:
        return not values.size or bool(max(values.max(), -values.min()) < LARGEST)  # of NaN nothing is less

    def spread(self, values: Float32, index: Int64) -> Float32:
        return values[index]

    def gather(self, values: Chunks, rows: Int32, absent: Float32) -> Float32:
        out = np.broadcast_to(absent, (len(rows), values.width)).copy()
        known = rows >= 0
        out[known] = values.read(rows[known])
        return out

    def initialise(self, values: Chunks, rows: Int32, ids: Int64, scale: float, seed: int) -> None:
        with np.errstate(over="ignore"):
            base = mixed(ids.view(np.uint64) + np.uint64(seed) * GOLDEN)
            steps = np.arange(values.width, dtype=np.uint64) * GOLDEN
        bits = mixed(base[:, None] + steps) >> np.uint64(40)
        values.write(rows, np.float32(scale) * (bits.astype(np.float32) * np.float32(2**-23) - np.float32(1)))

    def touch(self, marks: Chunks, rows: Int32, stamp: int) -> None:
        distinct, times = np.unique(rows, return_counts=True)
        count = marks.read(distinct)[:, 0].astype(np.int64) + times
        marks.write(distinct, np.stack((np.minimum(count, 2**32 - 1), np.full(len(count), stamp)), 1))

    def adagrad(
        self, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        settings: Sequence[float],
    ) -> None:  # fmt: skip
        scale, rate, epsilon = map(np.float32, settings)
        g = gradients * scale
        sums = state.read(rows) + np.mean(g * g, 1, keepdims=True)
        state.write(rows, sums)
        values.write(places, values.read(places) - rate / (np.sqrt(sums) + epsilon) * g)

    def adam(
        self, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        settings: Sequence[float],
    ) -> None:  # fmt: skip
        scale, rate, epsilon, beta1, beta2, decay, averaging = map(np.float32, settings)
        dim, g, moments = values.width, gradients * scale, state.read(rows)
        first, second, steps = moments[:, :dim], moments[:, dim : 2 * dim], moments[:, 2 * dim : 2 * dim + 1]
        steps += 1
        first += (1 - beta1) * (g - first)
        second += (1 - beta2) * (g * g - second)
        by = rate / (1 - beta1**steps) * first
        moved = (1 - rate * decay) * values.read(places) - by / (
            np.sqrt(second / (1 - beta2**steps)) + epsilon
        )
        values.write(places, moved)
        if averaging:
            average, kept = moments[:, 2 * dim + 1 :], np.minimum(averaging, (steps - 1) / (steps + 8))
            average[:] = moved + kept * (average - moved)
        state.write(rows, moments)


def mixed(values: NDArray[Any]) -> NDArray[np.uint64]:
    """The finaliser of MurmurHash3 for 64 bits, of every value."""
    h = values.view(np.uint64)
    with np.errstate(over="ignore"):
        h = (h ^ (h >> SHIFT)) * MIX[0]
        h = (h ^ (h >> SHIFT)) * MIX[1]
    return h ^ (h >> SHIFT)


@njit(cache=True)
def _mix(key: int) -> np.uint64:
    h = np.uint64(key)
    h = (h ^ (h >> SHIFT)) * MIX[0]
    h = (h ^ (h >> SHIFT)) * MIX[1]
    return h ^ (h >> SHIFT)


@njit(cache=True)
def _home(h: np.uint64, bits: int) -> np.int64:
    return np.int64(h >> np.uint64(64 - bits)) if bits else np.int64(0)


@njit(cache=True)
def _stride(h: np.uint64, bits: int) -> np.int64:
    """Equation 5 over lines; see kernels.cpp."""
    return np.int64(h & LOW) % ((np.int64(1) << bits) - 1) + 1 | 1 if bits else np.int64(1)


@njit(cache=True)
def _seek(lines: Lines, key: np.uint64, h: np.uint64) -> np.int64:
    """The slot of a key, or ~ the slot where it would go; lines fill from their left."""
    at, by, mask = _home(h, lines.bits), _stride(h, lines.bits), (np.int64(1) << lines.bits) - 1
    while True:
        for slot in range(at * LINE, at * LINE + LINE):
            if lines.keys[slot] == 0:
                return ~slot
            if lines.keys[slot] == key:
                return slot
        at = (at + by) & mask


@njit(cache=True)
def _find(ids: Int64, lines: Lines, old: Lines, rows: Int32) -> None:
    for i in range(len(ids)):
        key, h = np.uint64(ids[i]) ^ SIGN, _mix(ids[i])
        slot = _seek(lines, key, h)
        rows[i] = lines.rows[slot] - 1 if slot >= 0 else -1
        if rows[i] < 0 and len(old.keys):
            slot = _seek(old, key, h)
            rows[i] = old.rows[slot] - 1 if slot >= 0 else -1


@njit(cache=True)
def _insert(
    ids: Int64, lines: Lines, old: Lines, room: int, free: Int32, state: Int64, rows: Int32, fresh: Int64
) -> int:
    for i in range(len(ids)):
        key, h = np.uint64(ids[i]) ^ SIGN, _mix(ids[i])
        slot = _seek(lines, key, h)
        if slot >= 0:
            rows[i] = lines.rows[slot] - 1
            continue
        before = _seek(old, key, h) if len(old.keys) else np.int64(-1)
        if before >= 0:
            rows[i] = old.rows[before] - 1
            continue
        if state[0] >= room:
            return i
        if state[2]:
            state[2] -= 1
            rows[i] = free[state[2]]
        else:
            rows[i] = state[1]
            state[1] += 1
        lines.keys[~slot] = key
        lines.rows[~slot] = rows[i] + 1
        state[0] += 1
        fresh[state[3]] = i
        state[3] += 1
    return len(ids)


@njit(cache=True)
def _move(source: Lines, first: int, last: int, drop: NDArray[np.uint8], lines: Lines) -> None:
    for at in range(first * LINE, last * LINE):
        row = source.rows[at]
        if row == 0 or (len(drop) and drop[row - 1]):
            continue
        key = source.keys[at]
        slot = _seek(lines, key, _mix(key ^ SIGN))
        if slot < 0:
            lines.keys[~slot] = key
            lines.rows[~slot] = row


@njit(cache=True)
def _probes(key: int, bits: int, lines: Int64) -> None:
    h = _mix(key)
    at, by = _home(h, bits), _stride(h, bits)
    for i in range(len(lines)):
        lines[i] = at
        at = (at + by) & (len(lines) - 1)


@njit(cache=True)
def _unique(ids: Int64, slots: Int32, bits: int, distinct: Int64, inverse: Int64) -> int:
    count = 0
    for i in range(len(ids)):
        at = _home(_mix(ids[i]), bits)
        while slots[at] and distinct[slots[at] - 1] != ids[i]:
            at = (at + 1) & (len(slots) - 1)
        if slots[at] == 0:
            distinct[count] = ids[i]
            count += 1
            slots[at] = count
        inverse[i] = slots[at] - 1
    return count


@njit(cache=True)
def _add_by(values: Float32, index: Int64, sums: Float32) -> None:
    for i in range(len(index)):
        for d in range(values.shape[1]):
            sums[index[i], d] += values[i, d]
