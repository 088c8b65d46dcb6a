"""A file of /dev/shm as memory."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
POPULATE_WRITE = 23  # of madvise


def mapped(descriptor: int) -> Bytes:
    """All of a file; what is written to it other processes see."""
    return np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)


def touch(memory: Bytes) -> None:
    """Map every page: a first touch is slow. Kernels before 5.14 do without."""
    start, length = memory.ctypes.data, len(memory)
    for offset in range(0, length, 1 << 26):
        size = ctypes.c_size_t(min(1 << 26, length - offset))
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start + offset), size, POPULATE_WRITE)
