"""What an item's words say: hashed TF-IDF, reduced."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from genrec.progress import counting
from training.vectors.reduce import Sparse, truncated_svd
from training.vectors.stored import Stored, spans

WORD_BINS = 1 << 15


def text_vectors(titles: pa.Array, genres: pa.Array, rank: int, seed: int, path: Path) -> Stored:
    """n titles and genres (strings) -> float32[n, <= rank] in a file."""
    return truncated_svd(word_matrix(titles, genres), rank, seed, path, "text vectors")


def word_matrix(titles: pa.Array, genres: pa.Array) -> Sparse:
    """TF-IDF of the bins of words, rows of unit norm: Sparse[n, WORD_BINS]."""
    count = len(titles)
    lengths, parts = np.empty(count, np.int64), []
    with counting("words", count, "item") as bar:
        for start, stop in spans(count):
            texts = zip(titles[start:stop].to_pylist(), genres[start:stop].to_pylist(), strict=True)
            bags = [bins(f"{title} {genre}") for title, genre in texts]
            lengths[start:stop] = [len(bag) for bag in bags]
            parts.append(np.array([each for bag in bags for each in bag], np.int32))
            bar.update(stop - start)
    columns = np.concatenate(parts)
    frequency = np.bincount(columns, minlength=WORD_BINS)
    weights = np.log((1 + count) / (1 + frequency)).astype(np.float32) + np.float32(1e-3)
    offsets, values = np.concatenate(([0], np.cumsum(lengths))), weights[columns]
    for start, stop in spans(count):
        inside = slice(offsets[start], offsets[stop])
        owner = np.repeat(np.arange(stop - start), lengths[start:stop])
        norm = np.sqrt(np.bincount(owner, values[inside] ** 2, stop - start))
        values[inside] /= norm[owner].astype(np.float32)
    return Sparse(offsets, columns, values, WORD_BINS)


def bins(text: str) -> list[int]:
    """The distinct bins of a text's words, ascending; bin 0 where it has none."""
    return sorted({zlib.crc32(word.encode()) % WORD_BINS for word in words(text)}) or [0]


def words(text: str) -> list[str]:
    """Lower-case words and years."""
    return re.findall(r"\w+", text.lower())
