"""The memory of a dynamic table: lines of keys, and rows in chunks, both fresh pages of the system."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Int32, Int64, Float32 = NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]

LINE = 8  # keys of 8 bytes in a cache line of 64
CACHE_LINE = 64  # bytes
CHUNK_BYTES = 16 << 20
HUGE_PAGE = 2 << 20
LARGEST = 1e18  # of a gradient: its square is a float32 still


def zeros(count: int, dtype: DTypeLike) -> NDArray:
    """[count] zeros that begin at a page: a line of keys is one cache line. Untouched pages take no memory."""
    size = max(count * np.dtype(dtype).itemsize, 1)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)  # a random look-up else misses the table of pages too
    return np.frombuffer(pages, dtype, count)


def empty_lines(rows: int, width: int) -> Float32:
    """[rows, width], not set, from the beginning of a cache line on: what is written past the caches goes by lines."""
    raw = np.empty(rows * width + CACHE_LINE // 4, np.float32)
    first = -raw.ctypes.data % CACHE_LINE // 4
    return raw[first : first + rows * width].reshape(rows, width)


class Lines(NamedTuple):
    """2**bits lines of 8 slots: keys uint64[slots] (the id, its sign bit turned), rows int32[slots] (row + 1).

    Zeros are an empty slot.
    """

    keys: NDArray[np.uint64]
    rows: Int32
    bits: int

    @classmethod
    def empty(cls, bits: int) -> Lines:
        """Lines without a key."""
        slots = LINE << bits
        return cls(zeros(slots, np.uint64), zeros(slots, np.int32), bits)

    @property
    def slots(self) -> int:
        """How many keys there would be room for."""
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """12 bytes a slot."""
        return self.keys.nbytes + self.rows.nbytes


NO_LINES = Lines(np.zeros(0, np.uint64), np.zeros(0, np.int32), 0)


class Chunks:
    """Rows [*, width] of one type in equal chunks of 2**shift rows, so that growing moves nothing."""

    def __init__(self, width: int, dtype: DTypeLike, shift: int) -> None:
        self.width, self.dtype, self.shift = width, np.dtype(dtype), shift
        self.parts: list[NDArray] = []
        self.starts = np.empty(0, np.uint64)  # addresses of the parts

    @classmethod
    def around(cls, values: NDArray) -> Chunks:
        """The rows of `values` [n, width] where they lie, n below 2**30; whoever has these keeps `values`."""
        made = cls(values.shape[1], values.dtype, 30)
        made.parts, made.starts = [values], np.array([values.ctypes.data], np.uint64)
        return made

    def reserve(self, rows: int) -> None:
        """Have chunks for `rows` rows and the next one ready (section 4.1)."""
        while len(self.parts) << self.shift <= rows:
            part = zeros(self.width << self.shift, self.dtype).reshape(-1, self.width)
            self.parts.append(part)
            self.starts = np.append(self.starts, np.uint64(part.ctypes.data))

    def read(self, rows: Int32) -> NDArray:
        """[n, width] at `rows` [n], none of them negative."""
        out = np.empty((len(rows), self.width), self.dtype)
        for part, picked, places in self._split(rows):
            out[picked] = part[places]
        return out

    def write(self, rows: Int32, values: NDArray) -> None:
        """Put `values` [n, width], or one value for all, at distinct `rows` [n]."""
        values = np.broadcast_to(np.asarray(values, self.dtype), (len(rows), self.width))
        for part, picked, places in self._split(rows):
            part[places] = values[picked]

    def _split(self, rows: Int32) -> list[tuple[NDArray, NDArray, Int32]]:
        """Per chunk that is meant: its array, which of the rows lie in it, and where."""
        chunk = rows >> self.shift
        inside = rows & ((1 << self.shift) - 1)
        meant = [(number, np.flatnonzero(chunk == number)) for number in np.unique(chunk)]
        return [(self.parts[number], picked, inside[picked]) for number, picked in meant]

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks, the ready one included."""
        return sum(part.nbytes for part in self.parts)


def shift_for(row_bytes: int) -> int:
    """Rows of a chunk as a power of two: chunks of about 16 MiB."""
    return max((CHUNK_BYTES // row_bytes).bit_length() - 1, 0)
