"""Vectors that lie on disk and are read in blocks: what is in memory is a block, however many items there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

BLOCK = 1 << 16


def spans(count: int, size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """[start, stop) of consecutive blocks."""
    return ((start, min(start + size, count)) for start in range(0, count, size))


class Stored(NamedTuple):
    """float32[count, width] in a file."""

    path: Path
    count: int
    width: int

    @classmethod
    def of(cls, path: Path, count: int) -> Stored:
        """A file of `count` rows."""
        return cls(path, count, path.stat().st_size // 4 // count)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """float32[stop - start, width]."""
        found = np.fromfile(self.path, np.float32, (stop - start) * self.width, offset=4 * start * self.width)
        return found.reshape(-1, self.width)

    def pick(self, places: np.ndarray) -> np.ndarray:
        """Those at int64[m]: float32[m, width]. Pages of the file are held for one block of them at a time."""
        found = np.empty((len(places), self.width), np.float32)
        for start, stop in spans(len(places), BLOCK >> 2):
            mapped = np.memmap(self.path, np.float32, "r", shape=(self.count, self.width))
            found[start:stop] = mapped[places[start:stop]]
        return found


class ItemVectors:
    """Parts side by side, each row of a part scaled to a norm of the root of the part's weight (zero stays zero)."""

    def __init__(self, parts: Sequence[tuple[Stored, float]]) -> None:
        self.parts = parts
        self.count, self.width = parts[0][0].count, sum(part.width for part, _ in parts)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """float32[stop - start, width]."""
        return self._beside([part.rows(start, stop) for part, _ in self.parts])

    def pick(self, places: np.ndarray) -> np.ndarray:
        """Those at int64[m]: float32[m, width]."""
        return self._beside([part.pick(places) for part, _ in self.parts])

    def _beside(self, found: list[np.ndarray]) -> np.ndarray:
        scaled = [
            v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-6) * weight**0.5
            for v, (_, weight) in zip(found, self.parts, strict=True)
        ]
        return np.ascontiguousarray(np.concatenate(scaled, axis=1), np.float32)
