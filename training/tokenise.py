"""Semantic IDs: item vectors from text and co-occurrence, quantised level by level into residual codebooks.

The text part is hashed TF-IDF of title and genre words, the co-occurrence part the positive pointwise mutual
information of items near each other in the training part of histories; both are reduced by a truncated SVD.
Residual quantisation is that of TIGER and LETTER with k-means (FAISS) in the place of a learned autoencoder.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import torch
from tqdm import tqdm

from genrec.catalogue.semantic_id import MAX_SIZE
from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from training.data import Histories
from training.sources import ITEM, read_table, required, text, where

SEMANTIC_IDS = (
    'JSON {item: ["<a_12>", "<b_3>", ...]} or CSV item,code_1,..,code_L, one length for all,'
    f" codes 0 to {MAX_SIZE - 1}"
)
WORD_BINS = 1 << 15
WINDOW = 5  # co-occurrence reaches this many items to either side, weighted by 1 / distance


def truncated_svd(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], rank: int, seed: int
) -> np.ndarray:
    """Of a sparse matrix: left vectors times root singular values, float32[n, <= rank]."""
    indices = torch.from_numpy(np.stack((rows, columns)))
    matrix = torch.sparse_coo_tensor(
        indices, torch.from_numpy(values), shape, check_invariants=True
    ).coalesce()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        u, s, _ = torch.svd_lowrank(matrix, q=min(rank, *shape), niter=4)
    return (u * s.sqrt()).numpy()


def text_vectors(texts: list[str], rank: int, seed: int) -> np.ndarray:
    """Hashed TF-IDF of words, reduced: n texts -> float32[n, <= rank]."""
    bags = [np.unique([zlib.crc32(w.encode()) % WORD_BINS for w in words(t)] or [0]) for t in texts]
    rows = np.repeat(np.arange(len(bags)), [len(b) for b in bags])
    columns = np.concatenate(bags).astype(np.int64)
    frequency = np.bincount(columns, minlength=WORD_BINS)
    weight = np.log((1 + len(texts)) / (1 + frequency[columns])).astype(np.float32) + 1e-3
    norm = np.sqrt(np.bincount(rows, weight**2))[rows].astype(np.float32)
    return truncated_svd(rows, columns, weight / norm, (len(texts), WORD_BINS), rank, seed)


def words(text: str) -> list[str]:
    """Lower-case words and years."""
    return re.findall(r"\w+", text.lower())


def cooccurrence_vectors(rows: np.ndarray, owner: np.ndarray, n: int, rank: int, seed: int) -> np.ndarray:
    """PPMI of pairs within WINDOW, reduced: item `rows` and `owner` int64[total] -> float32[n, <= rank]."""
    keys, weights = [], []
    for distance in range(1, WINDOW + 1):
        same = owner[distance:] == owner[:-distance]
        a, b = rows[:-distance][same], rows[distance:][same]
        keys += [a * n + b, b * n + a]
        weights += [np.full(2 * same.sum(), 1 / distance)]
    if not sum(map(len, keys)):
        return np.zeros((n, 1), np.float32)
    pairs, index = np.unique(np.concatenate(keys), return_inverse=True)
    count = np.bincount(index, np.concatenate(weights))
    a, b = pairs // n, pairs % n
    total = np.bincount(a, count, minlength=n)
    # Context smoothing (power 0.75, as word2vec) keeps rare items from dominating the PMI.
    context = total**0.75
    pmi = np.log(count * context.sum() / (total[a] * context[b]))
    keep = pmi > 0
    return truncated_svd(a[keep], b[keep], pmi[keep].astype(np.float32), (n, n), rank, seed)


def item_vectors(
    texts: list[str], train: Histories, rows: np.ndarray, rank: int, text_weight: float, seed: int
) -> np.ndarray:
    """Both parts side by side, unit norm times weight; `rows` are the item rows of `train.items`."""
    owner = np.repeat(np.arange(len(train)), train.lengths)
    parts = (
        (text_vectors(texts, rank, seed), text_weight),
        (cooccurrence_vectors(rows.astype(np.int64), owner, len(texts), rank, seed), 1 - text_weight),
    )
    scaled = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-6) * w**0.5 for v, w in parts]
    return np.ascontiguousarray(np.concatenate(scaled, axis=1), np.float32)


def quantise(vectors: np.ndarray, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    """Residual k-means: float32[n, d] -> codes int32[n, L]; the last level spreads what would collide."""
    residual, codes = vectors.copy(), np.zeros((len(vectors), len(sizes)), np.int32)
    for level, size in enumerate(tqdm(sizes, desc="codebooks", unit="level", delay=2)):
        means = faiss.Kmeans(
            vectors.shape[1], min(size, len(vectors)), niter=25, seed=seed + level, min_points_per_centroid=1,
            max_points_per_centroid=1 << 20,
        )  # fmt: skip
        means.train(residual)
        if level + 1 < len(sizes) or len(sizes) == 1:
            codes[:, level] = means.index.search(residual, 1)[1][:, 0]
        else:
            codes[:, level] = spread(residual, means.centroids, codes[:, :level])
        residual -= means.centroids[codes[:, level]]
    return codes


def spread(residual: np.ndarray, centroids: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Nearest centroid, but items of one path take different ones while there are enough: int32[n]."""
    _, group = np.unique(path, axis=0, return_inverse=True)
    chosen = np.empty(len(residual), np.int32)
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]):
        distance = ((residual[members, None] - centroids[None]) ** 2).sum(-1)
        for row, code in assign(distance):
            chosen[members[row]] = code
    return chosen


def assign(distance: np.ndarray) -> Iterator[tuple[int, int]]:
    """Greedy matching by distance [m, T]: yields (row, code), codes distinct within each round of T rows."""
    left = distance.copy()
    free = np.ones(distance.shape[1], bool)
    for _ in range(len(distance)):
        if not free.any():
            free[:] = True
        row, code = np.unravel_index(np.argmin(np.where(free, left, np.inf)), left.shape)
        left[row], free[code] = np.inf, False
        yield int(row), int(code)


def codebook_means(vectors: np.ndarray, codes: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """What each code stands for: per level the mean residual of its items: float32[T_l, d], 0 when unused.

    For trained IDs these are about the centroids; published IDs get them from our item vectors all the same.
    """
    residual, books = vectors.astype(np.float64), []
    for level, size in enumerate(sizes):
        book = np.zeros((size, vectors.shape[1]))
        np.add.at(book, codes[:, level], residual)
        book /= np.maximum(np.bincount(codes[:, level], minlength=size), 1)[:, None]
        residual = residual - book[codes[:, level]]
        books.append(book.astype(np.float32))
    return books


def collisions(codes: np.ndarray) -> tuple[int, int]:
    """Of codes [n, L]: how many semantic IDs several items share, and how many items share theirs."""
    counts = np.unique(codes, axis=0, return_counts=True)[1]
    return int((counts > 1).sum()), int(counts[counts > 1].sum())


def read_semantic_ids(path: Path) -> dict[str, list[int]]:
    """Published semantic IDs by item key: JSON {item: ["<a_12>", ...]} or CSV item, code_1, ..., code_L.

    Raises InputError naming the file and the item or line.
    """
    given: dict[str, list[int]] = {}
    for place, item, codes in rows_of_semantic_ids(path):
        try:
            given[item] = [code_of(code) for code in codes]
        except (ValueError, TypeError) as error:
            raise InputError(str(path), f"{place}: {error}", SEMANTIC_IDS) from error
    lengths = {len(codes) for codes in given.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(str(path), f"semantic IDs have {sorted(lengths)} codes", SEMANTIC_IDS)
    return given


def rows_of_semantic_ids(path: Path) -> Iterator[tuple[str, str, list[object]]]:
    """(place for errors, item, codes as they are spelled) of every item of a file. Raises InputError."""
    return _items_of_json(path) if path.suffix == ".json" else _items_of_table(path)


def _items_of_json(path: Path) -> Iterator[tuple[str, str, list[object]]]:
    try:
        items = read_json(path).items()
    except (ArtifactError, AttributeError) as error:
        raise InputError(str(path), f"cannot be read: {error}", SEMANTIC_IDS) from error
    return ((f"item {item!r}", str(item), codes) for item, codes in items)


def _items_of_table(path: Path) -> Iterator[tuple[str, str, list[object]]]:
    table = read_table(path)
    keys = required(table, path, ITEM).to_pylist()
    names = {name for name in table.column_names if re.fullmatch(r"code_\d+", name)}
    if not names:
        raise InputError(str(path), "has no column code_1", SEMANTIC_IDS)
    columns = [
        text(table, path, (name,)).to_pylist() for name in sorted(names, key=lambda name: int(name[5:]))
    ]
    for row, (key, *codes) in enumerate(zip(keys, *columns, strict=True)):
        yield where(path, row), key, codes


def code_of(value: object) -> int:
    """`"<a_12>"`, `"12"` or 12 -> 12. Raises ValueError."""
    found = re.fullmatch(r"(?:<\w+_)?(\d+)>?", str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a code")
    if len(found[1]) > 10 or int(found[1]) >= MAX_SIZE:
        raise ValueError(f"the code {value} is beyond {MAX_SIZE - 1}")
    return int(found[1])
