"""The kernels of a dynamic table in C++, called by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genrec.compiled import load_compiled
from training.embedding.arrays import LARGEST, Chunks, Float32, Int32, Int64, Lines, empty_lines

SOURCE, HEADER = (Path(__file__).with_name(name) for name in ("kernels.cpp", "memory.h"))
SHARED = 1 << 16  # ids from which on threads of their own pay


class _Table(ctypes.Structure):
    _fields_ = (("keys", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("bits", ctypes.c_int64))


class _Chunks(ctypes.Structure):
    _fields_ = (("starts", ctypes.c_void_p), ("shift", ctypes.c_int64))


class Compiled:
    """kernels.cpp; `training.embedding.portable.Portable` has the same methods."""

    name = "C++"

    def __init__(self) -> None:
        """Raises ArtifactError where g++ fails."""
        self._library = load_compiled(SOURCE, (HEADER,))

    def find(self, ids: Int64, lines: Lines, old: Lines) -> Int32:
        """Rows int32[n] of ids int64[n], -1 where absent from both; `old` may be NO_LINES."""
        rows = np.empty(len(ids), np.int32)
        threads = torch.get_num_threads() if len(ids) >= SHARED else 1
        self._call("find", ids, len(ids), lines, old, rows, threads)
        return rows

    def insert(
        self, ids: Int64, lines: Lines, old: Lines, room: int, free: Int32, state: Int64,
        rows: Int32, fresh: Int64,
    ) -> int:  # fmt: skip
        """See kernels.cpp; returns how many ids are done."""
        return self._call("insert", ids, len(ids), lines, old, room, free, state, rows, fresh)

    def move(
        self, source: Lines, first: int, last: int, drop: NDArray[np.uint8] | None, lines: Lines
    ) -> None:
        """Move the keys of lines [first, last) over, but for rows that `drop` uint8[rows] marks."""
        self._call("move", source, first, last, drop, lines)

    def probes(self, key: int, bits: int) -> Int64:
        """The lines that an id is looked for in, in their order: int64[2**bits]."""
        lines = np.empty(1 << bits, np.int64)
        self._call("probes", key, bits, lines)
        return lines

    def unique(self, ids: Int64) -> tuple[Int64, Int64]:
        """Distinct ids in the order they first come, and for each id its place among them, int64[n]."""
        bits = max(2 * len(ids), 2).bit_length()
        distinct, inverse = np.empty_like(ids), np.empty(len(ids), np.int64)
        slots = np.zeros(1 << bits, np.int32)
        return distinct[: self._call("unique", ids, len(ids), slots, bits, distinct, inverse)], inverse

    def by_owner(self, ids: Int64, ranks: int) -> tuple[Int64, Int64]:
        """Places int64[n] of ids grouped by owner, each owner's in order; counts int64[ranks], 4096 at most."""
        places, counts = np.empty(len(ids), np.int64), np.zeros(ranks, np.int64)
        self._call("by_owner", ids, len(ids), ranks, places, counts)
        return places, counts

    def add_by(self, values: Float32, index: Int64, sums: Float32) -> None:
        """Add values [n, dim] to rows index [n] of sums [distinct, dim], in place."""
        self._call("add_by", values, index, len(index), values.shape[1], sums)

    def sound(self, values: Float32) -> bool:
        """Whether no value is NaN, infinite or beyond LARGEST."""
        return bool(self._call("sound", values, values.size, ctypes.c_float(LARGEST)))

    def spread(self, values: Float32, index: Int64) -> Float32:
        """float32[n, dim]: values [distinct, dim] at index [n]."""
        out = np.empty((len(index), values.shape[1]), np.float32)
        self._call("spread", values, index, len(index), values.shape[1], out)
        return out

    def gather(self, values: Chunks, rows: Int32, absent: Float32) -> Float32:
        """float32[n, dim]: vectors of rows [n], `absent` [dim] for row -1."""
        out = empty_lines(len(rows), values.width)
        self._call("gather", values, rows, len(rows), values.width, absent, out)
        return out

    def initialise(self, values: Chunks, rows: Int32, ids: Int64, scale: float, seed: int) -> None:
        """First vectors, which depend on id and seed alone."""
        arguments = (values, rows, ids, len(rows), values.width, ctypes.c_float(scale), ctypes.c_uint64(seed))
        self._call("initialise", *arguments)

    def touch(self, marks: Chunks, rows: Int32, stamp: int) -> None:
        """Count a look-up of each row at step `stamp`."""
        self._call("touch", marks, rows, len(rows), ctypes.c_uint32(stamp))

    def adagrad(
        self, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        settings: Sequence[float],
    ) -> None:  # fmt: skip
        """Row-wise Adagrad of distinct rows, whose vectors are at `places` of `values`.

        Settings: scale of the gradients, rate, epsilon.
        """
        self._update("adagrad", values, state, places, rows, gradients, settings)

    def adam(
        self, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        settings: Sequence[float],
    ) -> None:  # fmt: skip
        """Adam likewise. Settings: scale of the gradients, rate, epsilon, beta1, beta2, decay, averaging."""
        self._update("adam", values, state, places, rows, gradients, settings)

    def _update(self, name: str, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
                settings: Sequence[float]) -> None:  # fmt: skip
        numbers = [ctypes.c_float(each) for each in settings]
        self._call(name, values, state, places, rows, gradients, len(rows), values.width, *numbers)

    def _call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        return function(*map(_as_c, arguments))


def _as_c(value: Any) -> Any:
    """An argument as C takes it; of arrays the address, which the caller keeps alive."""
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, Lines):
        return _Table(value.keys.ctypes.data if value.slots else None, value.rows.ctypes.data, value.bits)
    if isinstance(value, Chunks):
        return _Chunks(value.starts.ctypes.data, value.shift)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return value
