"""The dynamic embedding table: any int64 id has a row from the moment it is looked up (MTGRBoost, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from training.embedding.arrays import LARGEST, Chunks, Float32, Int32, Int64, shift_for
from training.embedding.index import MOST_ROWS, Index
from training.embedding.kernels import Kernels, best_kernels
from training.embedding.optimizers import Optimizer, RowwiseAdagrad
from training.embedding.vectors import Float16, MixedVectors, Vectors

POLICIES = ("lru", "lfu")
EMPTY_ID = -(2**63)  # marks an empty slot
COUNT, STAMP = range(2)


class Rows(NamedTuple):
    """Whole rows: ids int64[n], vectors [n, dim], optimizer's state [n, s], marks uint32[n, 2] (count, stamp).

    Vectors are fp16 where all of them are cold.
    """

    ids: Int64
    vectors: Float32 | Float16
    state: Float32
    marks: NDArray[np.uint32]


class DynamicTable:
    """Ids int64 to vectors float32[dimension].

    The first vector of a row is drawn from its id and `seed`, uniform in [-scale, scale): it does not depend on when,
    in which order or on which rank the id came. Ids that are read without being there have the `default` vector.

    With `hot_every`, a row that is looked up less than once in so many steps, on average since the first, is cold: its
    vector is fp16 (section 5.2). `sweep` moves rows.
    """

    def __init__(
        self, dimension: int, optimizer: Optimizer | None = None, *, scale: float = 0.02, seed: int = 0,
        default: Float32 | None = None, room: int = 0, kernels: Kernels | None = None, hot_every: int = 0,
    ) -> None:  # fmt: skip
        """`room` ids fit before the index doubles; `hot_every` 0 keeps all in fp32. Raises InputError."""
        for name, value, least in (("dimension", dimension, 1), ("hot_every", hot_every, 0)):
            if value < least:
                raise InputError(name, f"is {value}", f"at least {least}")
        self.dimension, self.optimizer = dimension, optimizer or RowwiseAdagrad()
        self.scale, self.seed, self.kernels = scale, seed, kernels or best_kernels()
        self.default = self._vectors("default", np.zeros(dimension) if default is None else default, None)
        self.index = Index(self.kernels, room)
        width = self.optimizer.width(dimension)
        shift = shift_for(4 * (dimension + width + 2))
        self.hot_every = hot_every
        self.values = MixedVectors(dimension, shift) if hot_every else Vectors(dimension, shift)
        self.state, self.marks = Chunks(width, np.float32, shift), Chunks(2, np.uint32, shift)
        self._reserve()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes_beside_vectors(self) -> int:
        """Index, counters and stamps of the rows given; not the vectors nor the optimizer's state."""
        return self.index.nbytes + 8 * self.index.rows_given

    @property
    def bytes_per_key(self) -> float:
        """Of everything, the optimizer's state too; memory that was touched, shared by the ids that are there."""
        given = self.index.rows_given
        whole = self.nbytes_beside_vectors + self.values.bytes_of(given) + 4 * given * self.state.width
        return whole / max(len(self), 1)

    def rows_of(self, ids: Int64, stamp: int = 0) -> Int32:
        """Rows int32[n] of ids int64[n]; those that are not there get one. Counts a look-up at step `stamp`.

        Raises InputError.
        """
        ids = _checked(ids)
        if len(self) + len(ids) > MOST_ROWS:
            raise InputError("ids", f"would make {len(self) + len(ids)} rows", f"{MOST_ROWS} rows in a table")
        before = self.index.rows_given
        rows, fresh = self.index.insert(ids)
        if len(fresh):
            self._reserve()
            self._begin(rows[fresh], ids[fresh], before)
        self.kernels.touch(self.marks, rows, stamp)
        return rows

    def look_up(self, ids: Int64, stamp: int = 0) -> Float32:
        """Vectors float32[n, dim] of ids int64[n], as `rows_of` finds or makes them."""
        return self.vectors(self.rows_of(ids, stamp))

    def read(self, ids: Int64) -> Float32:
        """Vectors float32[n, dim] as they are; `default` for ids that are not there. Changes nothing."""
        return self.vectors(self.index.find(_checked(ids)))

    def vectors(self, rows: Int32) -> Float32:
        """float32[n, dim] at rows [n]; `default` for -1."""
        return self.values.gather(self.kernels, rows, self.default)

    def apply(self, rows: Int32, gradients: Float32, scale: float = 1.0) -> None:
        """One step of the optimizer on distinct rows [n] by gradients [n, dim] times `scale`. Raises InputError."""
        gradients = self._vectors("gradients", gradients, len(rows))
        self.values.update(self.kernels, self.optimizer, self.state, rows, gradients, scale)

    def evict(self, keep: int, policy: str = "lru") -> Int64:
        """Keep the `keep` rows last (lru) or most often (lfu) looked up; the ids that go, int64[any].

        Of equals the other mark decides, then the row. What goes takes its optimizer's state with it. Only between
        steps: a row that was given before may be another id's after.
        """
        if policy not in POLICIES or keep < 0:
            raise InputError("evict", f"is {policy!r} to {keep} rows", f"{' or '.join(POLICIES)}, 0 or more")
        ids, rows = self.index.items()
        surplus = len(ids) - keep
        if surplus <= 0:
            return ids[:0]
        marks = self.marks.read(rows)
        first, second = (STAMP, COUNT) if policy == "lru" else (COUNT, STAMP)
        going = np.lexsort((rows, marks[:, second], marks[:, first]))[:surplus]
        self.index.remove(rows[going])
        self.values.release(rows[going])
        return ids[going]

    def sweep(self, step: int) -> None:
        """Move rows between hot and cold after step `step`: those of some chunks, all within `hot_every` steps."""
        if not self.hot_every:
            return
        for part in range(step % self.hot_every, len(self.marks.parts), self.hot_every):
            looks = self.marks.parts[part][:, COUNT].astype(np.int64)
            self.values.sweep(part, looks * self.hot_every >= step)

    def export(self, most: int = 1 << 16) -> Iterator[Rows]:
        """All rows in parts of at most `most`, in the order of their chunks; of each hot ones, then cold ones.

        Put into an empty table so, rows are in the chunks they were in, unless some were evicted: those that are swept
        together stay together.
        """
        ids, rows = self.index.items()
        ends = np.flatnonzero(np.diff(rows >> self.marks.shift)) + 1
        for inside in np.split(np.arange(len(rows)), ends):
            for alike in self.values.alike(rows[inside]):
                for first in range(0, len(alike), most):
                    part = inside[alike[first : first + most]]
                    yield Rows(ids[part], *(each.read(rows[part]) for each in self._chunks))

    def put(self, given: Rows) -> None:
        """Take rows in as they are, in place of those that are there. Raises InputError."""
        ids = _checked(given.ids)
        for name, chunks, values in zip(Rows._fields[1:], self._chunks, given[1:], strict=True):
            if values.shape != (len(ids), chunks.width):
                limit = str([len(ids), chunks.width])
                raise InputError(name, f"has shape {list(values.shape)}", limit)
        self._vectors("vectors", given.vectors, len(ids))
        if len(self.kernels.unique(ids)[0]) != len(ids):
            raise InputError("ids", "has an id twice", "distinct ids")
        rows, _ = self.index.insert(ids)
        self._reserve()
        for chunks, values in zip(self._chunks, given[1:], strict=True):
            chunks.write(rows, values)

    @property
    def _chunks(self) -> tuple[Vectors | MixedVectors, Chunks, Chunks]:
        return self.values, self.state, self.marks

    def _reserve(self) -> None:
        for chunks in self._chunks:
            chunks.reserve(self.index.rows_given)

    def _begin(self, rows: Int32, ids: Int64, before: int) -> None:
        """Fresh rows: the vector of the id; of whoever had one of the `before` first rows, no state and no marks."""
        self.values.begin(self.kernels, rows, ids, self.scale, self.seed)
        again = rows[rows < before]
        if len(again):
            self.state.write(again, np.float32(0))
            self.marks.write(again, np.uint32(0))

    def _vectors(self, name: str, values: NDArray, count: int | None) -> Float32:
        shape = (self.dimension,) if count is None else (count, self.dimension)
        if np.shape(values) != shape:
            raise InputError(name, f"has shape {list(np.shape(values))}", f"{list(shape)}")
        values = np.ascontiguousarray(values, np.float32)
        if not self.kernels.sound(values):
            raise InputError(
                name, "has a value that is NaN, infinite or too large", f"numbers below {LARGEST:g}"
            )
        return values


def sum_by(kernels: Kernels, values: Float32, index: Int64, count: int) -> Float32:
    """float32[count, dim]: sums of values [n, dim] with the same index [n]."""
    sums = np.zeros((count, values.shape[1]), np.float32)
    kernels.add_by(values, index, sums)
    return sums


def _checked(ids: Int64) -> Int64:
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise InputError("ids", f"is {ids.dtype} of shape {list(ids.shape)}", "int64 of one axis")
    if len(ids) and ids.min() == EMPTY_ID:
        raise InputError("ids", f"has {EMPTY_ID}, which marks an empty slot", f"ids above {EMPTY_ID}")
    return np.ascontiguousarray(ids)
