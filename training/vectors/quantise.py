"""Residual quantisation of item vectors, level by level, as in TIGER and LETTER but with k-means (FAISS).

Codebooks learn from a sample where there are many items; all are then assigned in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
from numba import njit

from genrec.catalogue.semantic_id import pack
from genrec.progress import counting, ticking
from training.data.steps import Steps
from training.vectors.stored import BLOCK, ItemVectors, spans

SAMPLE = 1 << 17  # vectors a codebook learns from at least, while there are as many
SAMPLE_PER_CODE = 32
SPREAD_ROWS = 1 << 14  # items of small groups that are spread at once
NUMBERS = 1 << 19  # float32 of one temporary array, which stays in the cache


def quantise(vectors: ItemVectors, sizes: tuple[int, ...], seed: int, steps: Steps) -> np.ndarray:
    """n vectors -> codes int32[n, L]; the last level spreads what would collide. A step per level."""
    codes, books = np.zeros((vectors.count, len(sizes)), np.int32), []
    with ticking("codebooks", len(sizes), "level") as bar:
        for level, size in enumerate(sizes):
            last = level + 1 == len(sizes) and level > 0

            def work(path: Path, level: int = level, size: int = size, last: bool = last) -> None:
                means = learn(vectors, books, codes, min(size, vectors.count), seed + level)
                found = (spread if last else nearest)(vectors, books, codes, means)
                with path.open("wb") as file:
                    np.savez(file, means=means, codes=found)

            with np.load(steps.make(f"level_{level + 1}.npz", work)) as made:
                codes[:, level] = made["codes"]
                books.append(made["means"])
            bar.update()
    return codes


def residuals(rows: np.ndarray, books: list[np.ndarray], codes: np.ndarray) -> np.ndarray:
    """What `books` leave of rows float32[m, d], which are changed, under their codes int32[m, L]."""
    for level, book in enumerate(books):
        rows -= book[codes[:, level]]
    return rows


def learn(
    vectors: ItemVectors, books: list[np.ndarray], codes: np.ndarray, size: int, seed: int
) -> np.ndarray:
    """`size` centroids of the residuals, of all or of a sample: float32[size, d]."""
    chosen = max(SAMPLE, SAMPLE_PER_CODE * size)
    if chosen < vectors.count:
        places = np.random.default_rng(seed).choice(vectors.count, chosen, replace=False)
        places.sort()
    else:
        places = np.arange(vectors.count)
    means = faiss.Kmeans(
        vectors.width, size, niter=25, seed=seed, min_points_per_centroid=1, max_points_per_centroid=1 << 20
    )
    means.train(residuals(vectors.pick(places), books, codes[places]))
    return means.centroids


def nearest(
    vectors: ItemVectors, books: list[np.ndarray], codes: np.ndarray, means: np.ndarray
) -> np.ndarray:
    """The centroid nearest to every residual: int32[n]."""
    index = faiss.IndexFlatL2(vectors.width)
    index.add(means)
    chosen = np.empty(vectors.count, np.int32)
    with counting("codes", vectors.count, "item") as bar:
        for start, stop in spans(vectors.count):
            rows = residuals(vectors.rows(start, stop), books, codes[start:stop])
            chosen[start:stop] = index.search(rows, 1)[1][:, 0]
            bar.update(stop - start)
    return chosen


def spread(vectors: ItemVectors, books: list[np.ndarray], codes: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Nearest centroid, but items of one path take different ones while there are enough: int32[n]."""
    paths = pack(codes[:, : len(books)], [len(book) for book in books])
    order = np.argsort(paths, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(paths[order])) + 1, len(order))
    chosen = np.empty(vectors.count, np.int32)
    with counting("spread", vectors.count, "item") as bar:
        for first, last in groups_at_once(ends):
            members = order[first:last]
            rows = residuals(vectors.pick(members), books, codes[members])
            inside = (
                ends[np.searchsorted(ends, first, "right") : np.searchsorted(ends, last, "right")] - first
            )
            chosen[members] = match(distances(rows, means), inside)
            bar.update(last - first)
    return chosen


def groups_at_once(ends: np.ndarray, rows: int = SPREAD_ROWS) -> Iterator[tuple[int, int]]:
    """[first, last) of consecutive whole groups, which end at int64[groups]: `rows` items at most, or one group."""
    first = 0
    while first < ends[-1]:
        place = int(np.searchsorted(ends, first + rows, "right")) - 1
        last = int(ends[max(place, np.searchsorted(ends, first, "right"))])
        yield first, last
        first = last


def distances(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Squared, of rows float32[m, d] to means float32[T, d]: float32[m, T]."""
    found = np.empty((len(rows), len(means)), np.float32)
    for start, stop in spans(len(rows), max(1, NUMBERS // means.size)):
        found[start:stop] = ((rows[start:stop, None] - means[None]) ** 2).sum(-1)
    return found


def match(distance: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Greedy matching by distance float32[m, T] within groups that end at int64[groups]: codes int32[m].

    Of a group the nearest pair of an item and a code comes first; codes are distinct within each round of T items.
    """
    chosen = np.empty(len(distance), np.int32)
    _match(distance, ends, chosen)
    return chosen


@njit(cache=True, nogil=True)
def _match(distance, ends, chosen):
    size = distance.shape[1]
    begin = 0
    for end in ends:
        if end - begin == 1:
            chosen[begin] = np.argmin(distance[begin])
        else:
            _match_group(distance[begin:end], chosen[begin:end], size)
        begin = end


@njit(cache=True, nogil=True)
def _match_group(distance, chosen, size):
    rows = len(distance)
    nearest_first = np.empty((size, rows), np.int64)
    for code in range(size):
        nearest_first[code] = np.argsort(distance[:, code], kind="mergesort")
    at, free = np.zeros(size, np.int64), np.ones(size, np.bool_)
    chosen[:] = -1
    for done in range(rows):
        if done % size == 0:
            free[:] = True
        best, best_row, best_code = np.inf, rows, 0
        for code in range(size):
            if free[code]:
                while chosen[nearest_first[code, at[code]]] >= 0:
                    at[code] += 1
                row = nearest_first[code, at[code]]
                if distance[row, code] < best or (distance[row, code] == best and row < best_row):
                    best, best_row, best_code = distance[row, code], row, code
        chosen[best_row], free[best_code] = best_code, False


def codebook_means(vectors: ItemVectors, codes: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """What each code stands for: per level the mean residual of its items: float32[T_l, d], 0 when unused.

    For trained IDs these are about the centroids; published IDs get them from our item vectors all the same.
    """
    books: list[np.ndarray] = []
    with counting("means of codes", len(sizes) * vectors.count, "item") as bar:
        for level, size in enumerate(sizes):
            book = np.zeros((size, vectors.width))
            for start, stop in spans(vectors.count, BLOCK >> 2):
                rows = vectors.rows(start, stop).astype(np.float64)
                np.add.at(book, codes[start:stop, level], residuals(rows, books, codes[start:stop]))
                bar.update(stop - start)
            books.append(book / np.maximum(np.bincount(codes[:, level], minlength=size), 1)[:, None])
    return [book.astype(np.float32) for book in books]


def collisions(codes: np.ndarray) -> tuple[int, int]:
    """Of codes [n, L]: how many semantic IDs several items share, and how many items share theirs."""
    sizes = [int(level.max()) + 1 for level in codes.T]
    counts = np.unique(pack(codes, sizes), return_counts=True)[1]
    return int((counts > 1).sum()), int(counts[counts > 1].sum())
