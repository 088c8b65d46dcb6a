# ruff: noqa: D102  (the methods of MixedVectors are documented in Vectors)
"""Where the vectors of a dynamic table lie: all in fp32, or hot rows in fp32 and cold ones in fp16 (section 5.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.embedding.arrays import Chunks, Float32, Int32, Int64
from training.embedding.kernels import Kernels
from training.embedding.optimizers import Optimizer

LARGEST_HALF = float(np.finfo(np.float16).max)
Float16 = NDArray[np.float16]


class Vectors(Chunks):
    """All rows in fp32; `MixedVectors` has the same methods."""

    def __init__(self, dimension: int, shift: int) -> None:
        super().__init__(dimension, np.float32, shift)

    def gather(self, kernels: Kernels, rows: Int32, absent: Float32) -> Float32:
        """float32[n, dim] at rows [n]; `absent` [dim] for row -1."""
        return kernels.gather(self, rows, absent)

    def begin(self, kernels: Kernels, rows: Int32, ids: Int64, scale: float, seed: int) -> None:
        """First vectors of fresh rows."""
        kernels.initialise(self, rows, ids, scale, seed)

    def update(
        self, kernels: Kernels, optimizer: Optimizer, state: Chunks, rows: Int32, gradients: Float32,
        scale: float,
    ) -> None:  # fmt: skip
        """One step of distinct rows [n]."""
        optimizer.update(kernels, self, state, rows, rows, gradients, scale)

    def alike(self, rows: Int32) -> list[Int64]:
        """Places in `rows` of those that `read` takes together: of one type."""
        return [np.arange(len(rows))]

    def release(self, rows: Int32) -> None:
        """These rows are free."""

    def bytes_of(self, rows: int) -> int:
        """Bytes of memory touched by the vectors of the first `rows` rows."""
        return rows * self.width * self.dtype.itemsize


class Store:
    """Vectors of one type in chunks, and which places of them are free."""

    def __init__(self, dimension: int, dtype: type[np.floating], shift: int) -> None:
        self.chunks, self.given, self._free = Chunks(dimension, dtype, shift), 0, np.zeros(0, np.int32)

    def take(self, count: int) -> Int32:
        """Places for `count` vectors, freed ones first."""
        again = min(count, len(self._free))
        self._free, used = np.split(self._free, [len(self._free) - again])
        fresh = np.arange(self.given, self.given + count - again, dtype=np.int32)
        self.given += len(fresh)
        self.chunks.reserve(self.given)
        return np.concatenate((used, fresh))

    def free(self, places: Int32) -> None:
        """Nobody has these any more."""
        self._free = np.concatenate((self._free, places))

    @property
    def held(self) -> int:
        """Places in use."""
        return self.given - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes touched."""
        return self.given * self.chunks.width * self.chunks.dtype.itemsize


class MixedVectors:
    """Hot rows in fp32, cold ones in fp16; a row begins hot. fp16 saturates at 65504.

    Of a row, `place` is p + 1 where its vector is the p-th of `hot`, -p - 1 where it is that of `cold`, and 0 where it
    has none, as fresh pages say. Updates of cold rows are computed in fp32.
    """

    def __init__(self, dimension: int, shift: int) -> None:
        self.width = dimension
        self.hot, self.cold = Store(dimension, np.float32, shift), Store(dimension, np.float16, shift)
        self.place = Chunks(1, np.int32, shift)

    def reserve(self, rows: int) -> None:
        """Have room to note places of `rows` rows."""
        self.place.reserve(rows)

    def gather(self, kernels: Kernels, rows: Int32, absent: Float32) -> Float32:
        place = np.zeros(len(rows), np.int32)
        known = rows >= 0
        place[known] = self._places(rows[known])
        found = kernels.gather(self.hot.chunks, np.maximum(place, 0) - 1, absent)
        cold = np.flatnonzero(place < 0)
        if len(cold):
            found[cold] = self.cold.chunks.read(-place[cold] - 1)
        return found

    def begin(self, kernels: Kernels, rows: Int32, ids: Int64, scale: float, seed: int) -> None:
        places = self.hot.take(len(rows))
        self.place.write(rows, places[:, None] + 1)
        kernels.initialise(self.hot.chunks, places, ids, scale, seed)

    def update(
        self, kernels: Kernels, optimizer: Optimizer, state: Chunks, rows: Int32, gradients: Float32,
        scale: float,
    ) -> None:  # fmt: skip
        place = self._places(rows)
        hot, cold = np.flatnonzero(place > 0), np.flatnonzero(place < 0)
        if len(hot):
            optimizer.update(
                kernels, self.hot.chunks, state, place[hot] - 1, rows[hot], gradients[hot], scale
            )
        if len(cold):
            values = self.cold.chunks.read(-place[cold] - 1).astype(np.float32)
            within = np.arange(len(cold), dtype=np.int32)
            optimizer.update(
                kernels, Chunks.around(values), state, within, rows[cold], gradients[cold], scale
            )
            self.cold.chunks.write(-place[cold] - 1, halved(values))

    def alike(self, rows: Int32) -> list[Int64]:
        """Hot ones, then cold ones."""
        place = self._places(rows)
        return [np.flatnonzero(place > 0), np.flatnonzero(place < 0)]

    def read(self, rows: Int32) -> Float32 | Float16:
        """[n, dim] of rows that are `alike`, in their type."""
        place = self._places(rows)
        if len(place) and place[0] < 0:
            return self.cold.chunks.read(-place - 1)
        return self.hot.chunks.read(place - 1)

    def write(self, rows: Int32, values: Float32 | Float16) -> None:
        """Vectors [n, dim] of distinct rows; they become hot, or cold where `values` are fp16."""
        self.release(rows)
        self._put(rows, values, hot=values.dtype != np.float16)

    def release(self, rows: Int32) -> None:
        place = self._places(rows)
        self.hot.free(place[place > 0] - 1)
        self.cold.free(-place[place < 0] - 1)
        self.place.write(rows, np.int32(0))

    def sweep(self, part: int, hot: NDArray[np.bool_]) -> None:
        """Make the rows of a part hot or cold as `hot` bool[2**shift] says."""
        place = self.place.parts[part][:, 0]
        first = part << self.place.shift
        for warmer in (True, False):
            moving = np.flatnonzero((hot & (place < 0)) if warmer else (~hot & (place > 0)))
            if len(moving):
                rows = (first + moving).astype(np.int32)
                values = self.read(rows)
                self.release(rows)
                self._put(rows, values, warmer)

    def bytes_of(self, rows: int) -> int:
        return 4 * rows + self.hot.nbytes + self.cold.nbytes

    def _put(self, rows: Int32, values: Float32 | Float16, hot: bool) -> None:
        store = self.hot if hot else self.cold
        places = store.take(len(rows))
        store.chunks.write(places, values if hot else halved(values))
        self.place.write(rows, (places[:, None] + 1) if hot else (-places[:, None] - 1))

    def _places(self, rows: Int32) -> Int32:
        return self.place.read(rows)[:, 0]


def halved(values: Float32 | Float16) -> Float16:
    """The nearest fp16 numbers."""
    return np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
