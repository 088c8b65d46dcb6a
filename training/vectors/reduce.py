"""Truncated SVD of sparse matrices: by torch where all fits easily, else in blocks of rows.

In blocks it is the subspace iteration of torch's `svd_lowrank` (Halko, Martinsson and Tropp, "Finding structure with
randomness", algorithm 4.4), but on the side of the columns: the rows, of which there may be many millions, are gone
through once per iteration and never orthonormalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numba import njit

from genrec.progress import counting
from training.vectors.stored import Stored, spans

ITERATIONS = 4
IN_MEMORY = 1 << 24  # numbers of the matrix, and of its left vectors, that torch may hold several times
LEAST = 1e-12  # a direction with less than this share of the largest one's square is rounding


@dataclass(frozen=True)
class Sparse:
    """n rows of `width` columns: row i has `columns` int32 and `values` float32 at offsets[i] to offsets[i + 1]."""

    offsets: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    width: int

    def __len__(self) -> int:
        return len(self.offsets) - 1


def truncated_svd(matrix: Sparse, rank: int, seed: int, path: Path, label: str) -> Stored:
    """Left vectors times root singular values, float32[n, <= rank], into a file."""
    if max(len(matrix.values), len(matrix) * rank) <= IN_MEMORY:
        svd_by_torch(matrix, rank, seed).tofile(path)
    else:
        svd_in_blocks(matrix, rank, seed, path, label)
    return Stored.of(path, len(matrix))


def svd_by_torch(matrix: Sparse, rank: int, seed: int) -> np.ndarray:
    """float32[n, <= rank], the matrix and more of its size in memory."""
    shape = (len(matrix), matrix.width)
    rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.offsets))
    indices = torch.from_numpy(np.stack((rows, matrix.columns)))
    values = torch.from_numpy(matrix.values)
    whole = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True).coalesce()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        u, s, _ = torch.svd_lowrank(whole, q=min(rank, *shape), niter=ITERATIONS)
    return (u * s.sqrt()).numpy()


def svd_in_blocks(matrix: Sparse, rank: int, seed: int, path: Path, label: str) -> None:
    """The same into a file; in memory are two arrays float32[width, rank] and blocks."""
    rank = min(rank, len(matrix), matrix.width)
    basis = np.random.default_rng(seed).standard_normal((matrix.width, rank), np.float32)
    with counting(label, (ITERATIONS + 3) * len(matrix), "row") as bar:
        for _ in range(ITERATIONS + 1):
            turned = np.zeros_like(basis)
            for start, stop in spans(len(matrix)):
                add_transposed(matrix, start, times(matrix, start, stop, basis), turned)
                bar.update(stop - start)
            squares = gram(turned)
            basis = turned
            turn(basis, whitening(*np.linalg.eigh(squares), power=-0.5))
        squares = np.zeros((rank, rank))
        for start, stop in spans(len(matrix)):
            squares += gram(times(matrix, start, stop, basis))
            bar.update(stop - start)
        onto = whitening(*np.linalg.eigh(squares), power=-0.25)[:, ::-1].astype(np.float32)
        with path.open("wb") as file:
            for start, stop in spans(len(matrix)):
                (times(matrix, start, stop, basis) @ onto).tofile(file)
                bar.update(stop - start)


def gram(rows: np.ndarray) -> np.ndarray:
    """rows^T rows of float32[n, q], summed in float64[q, q]."""
    squares = np.zeros((rows.shape[1], rows.shape[1]))
    for start, stop in spans(len(rows)):
        block = rows[start:stop].astype(np.float64)
        squares += block.T @ block
    return squares


def whitening(squares: np.ndarray, vectors: np.ndarray, power: float) -> np.ndarray:
    """vectors * squares^power of an eigendecomposition, what is rounding to zero: float64[q, q]."""
    sound = squares > LEAST * max(squares[-1], np.finfo(np.float64).tiny)
    return vectors * np.where(sound, np.where(sound, squares, 1) ** power, 0)


def turn(rows: np.ndarray, by: np.ndarray) -> None:
    """rows @ by in place, float32[n, q] and float64[q, q]."""
    for start, stop in spans(len(rows)):
        rows[start:stop] = rows[start:stop].astype(np.float64) @ by


def times(matrix: Sparse, start: int, stop: int, right: np.ndarray) -> np.ndarray:
    """Rows start to stop, times float32[width, q]: float32[stop - start, q]."""
    out = np.zeros((stop - start, right.shape[1]), np.float32)
    _times(matrix.offsets, matrix.columns, matrix.values, start, right, out)
    return out


def add_transposed(matrix: Sparse, start: int, left: np.ndarray, out: np.ndarray) -> None:
    """Add to `out` float32[width, q] the rows from `start`, transposed, times `left` float32[m, q]."""
    _add_transposed(matrix.offsets, matrix.columns, matrix.values, start, left, out)


@njit(cache=True, nogil=True)
def _times(offsets, columns, values, start, right, out):
    for row in range(len(out)):
        for place in range(offsets[start + row], offsets[start + row + 1]):
            value, other = values[place], columns[place]
            for k in range(right.shape[1]):
                out[row, k] += value * right[other, k]


@njit(cache=True, nogil=True)
def _add_transposed(offsets, columns, values, start, left, out):
    for row in range(len(left)):
        for place in range(offsets[start + row], offsets[start + row + 1]):
            value, other = values[place], columns[place]
            for k in range(left.shape[1]):
                out[other, k] += value * left[row, k]
