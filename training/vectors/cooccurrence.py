"""Which items stand near each other in histories: positive pointwise mutual information, reduced.

Pairs are counted item by item over an inverted index of the histories, so time grows with the interactions, and pairs
are in memory for a block of items only. What is kept of them is bounded: beyond MAX_PAIRS each item keeps those that
are the largest part of the mutual information.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from genrec.progress import counting
from training.vectors.reduce import Sparse, truncated_svd
from training.vectors.stored import Stored

WINDOW = 5  # co-occurrence reaches this many items to either side, weighted by 1 / distance
MAX_PAIRS = 1 << 27
BLOCK_PAIRS = 1 << 23


def cooccurrence_vectors(
    rows: np.ndarray, offsets: np.ndarray, n: int, rank: int, seed: int, path: Path
) -> Stored:
    """Item `rows` int32[total] of histories, `offsets` int64[U + 1] -> float32[n, <= rank] in a file."""
    matrix = mutual_information(rows, offsets, n, MAX_PAIRS)
    if not len(matrix.values):
        np.zeros(n, np.float32).tofile(path)
        return Stored.of(path, n)
    return truncated_svd(matrix, rank, seed, path, "co-occurrence vectors")


def mutual_information(rows: np.ndarray, offsets: np.ndarray, n: int, most: int) -> Sparse:
    """PPMI of pairs within WINDOW, at most `most` of them: Sparse[n, n]."""
    index = inverted(rows, offsets, n)
    total = np.zeros(n)
    _add_totals(rows, index.back, index.on, harmonics(), total)
    # Context smoothing (power 0.75, as word2vec) keeps rare items from dominating the PMI.
    context = total**0.75
    # Of an item that is seen c times, at most 2 WINDOW c pairs are distinct.
    sizes = np.minimum(np.diff(index.starts) * (2 * WINDOW), n)
    limit = row_limit(sizes, most)
    room = int(np.minimum(sizes, limit).sum())
    columns, values = np.empty(room, np.int32), np.empty(room, np.float32)
    lengths, filled = np.zeros(n, np.int64), 0
    with counting("pairs of items", len(rows), "interaction") as bar:
        for first, last, others, counts, ends in counted(rows, index, sizes, n):
            owner = np.repeat(np.arange(first, last), np.diff(ends, prepend=0))
            pmi = np.log(counts * context.sum() / (total[owner] * context[others]))
            keep = pmi > 0
            if limit < n:
                _keep_strongest(ends, counts * pmi, keep, limit)
            lengths[first:last] = np.bincount(owner[keep] - first, minlength=last - first)
            stop = filled + int(lengths[first:last].sum())
            columns[filled:stop], values[filled:stop] = others[keep], pmi[keep]
            filled = stop
            bar.update(int(index.starts[last] - index.starts[first]))
    return Sparse(np.concatenate(([0], np.cumsum(lengths))), columns[:filled], values[:filled], n)


class Inverted(NamedTuple):
    """Of item i, `places` of the histories at starts[i] to starts[i + 1].

    `back` and `on` uint8[total] are how many items of the same user stand before and behind a place, WINDOW at most.
    """

    starts: np.ndarray
    places: np.ndarray
    back: np.ndarray
    on: np.ndarray


def inverted(rows: np.ndarray, offsets: np.ndarray, n: int) -> Inverted:
    """The index of item `rows` int32[total] of histories, `offsets` int64[U + 1]."""
    starts = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n))))
    places = np.empty(len(rows), np.uint32 if len(rows) < 2**32 else np.int64)
    back, on = np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint8)
    _fill_index(rows, offsets, starts[:-1].copy(), places, back, on)
    return Inverted(starts, places, back, on)


def harmonics() -> np.ndarray:
    """What neighbours at distances 1 to k weigh together, for k = 0 to WINDOW."""
    return np.concatenate(([0], np.cumsum(1 / np.arange(1, WINDOW + 1))))


def row_limit(sizes: np.ndarray, most: int) -> int:
    """The largest number per row, at least 1, with which rows of `sizes` int64[n] are no more than `most` together."""
    low, high = 1, int(sizes.max(initial=1))
    while low < high:
        middle = (low + high + 1) // 2
        fits = np.minimum(sizes, middle).sum() <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def counted(
    rows: np.ndarray, index: Inverted, sizes: np.ndarray, n: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
    """Blocks of items: first, last, then of all their pairs the other item int32 and the weight float64.

    The last array int64[last - first] has where the pairs of each item end. What is yielded is overwritten by the next.
    """
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    room = BLOCK_PAIRS + int(sizes.max(initial=0))
    others, counts, scratch = np.empty(room, np.int32), np.empty(room), np.zeros(n)
    first = 0
    while first < n:
        last = min(int(np.searchsorted(bounds, bounds[first] + BLOCK_PAIRS)), n)
        ends = np.empty(last - first, np.int64)
        filled = _count(rows, *index, first, ends, others, counts, scratch)
        yield first, last, others[:filled], counts[:filled], ends
        first = last


@njit(cache=True, nogil=True)
def _fill_index(rows, offsets, next_place, places, back, on):
    for user in range(len(offsets) - 1):
        start, stop = offsets[user], offsets[user + 1]
        for place in range(start, stop):
            places[next_place[rows[place]]] = place
            next_place[rows[place]] += 1
            back[place] = min(place - start, WINDOW)
            on[place] = min(stop - 1 - place, WINDOW)


@njit(cache=True, nogil=True)
def _add_totals(rows, back, on, harmonics, total):
    for place in range(len(rows)):
        total[rows[place]] += harmonics[back[place]] + harmonics[on[place]]


@njit(cache=True, nogil=True)
def _count(rows, starts, places, back, on, first, ends, others, counts, scratch):
    filled = 0
    for item in range(first, first + len(ends)):
        begin = filled
        for distance in range(1, WINDOW + 1):
            weight = 1 / distance
            for ahead in (True, False):
                reach = on if ahead else back
                step = distance if ahead else -distance
                for at in range(starts[item], starts[item + 1]):
                    place = np.int64(places[at])
                    if reach[place] >= distance:
                        other = rows[place + step]
                        if scratch[other] == 0:
                            others[filled] = other
                            filled += 1
                        scratch[other] += weight
        for at in range(begin, filled):
            counts[at] = scratch[others[at]]
            scratch[others[at]] = 0
        ends[item - first] = filled
    return filled


@njit(cache=True, nogil=True)
def _keep_strongest(ends, strength, keep, limit):
    """Of every row the `limit` strongest, of equal ones those that come first; `keep` has what may stay."""
    begin = 0
    for end in ends:
        kept = np.flatnonzero(keep[begin:end]) + begin
        if len(kept) > limit:
            least = np.partition(strength[kept], len(kept) - limit)[len(kept) - limit]
            ties = limit - (strength[kept] > least).sum()
            for place in kept:
                if strength[place] < least or (strength[place] == least and ties <= 0):
                    keep[place] = False
                elif strength[place] == least:
                    ties -= 1
        begin = end
