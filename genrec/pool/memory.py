"""A file of /dev/shm as memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
POPULATE_WRITE = 23  # of madvise


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
FAILED = ctypes.c_void_p(-1).value


def mapped(descriptor: int) -> Bytes:
    """All of a file; what is written to it other processes see. Raises OSError; ValueError where it is empty.

    Not by Python's mmap, which keeps a descriptor of its own: the one that is closed first takes all locks on the file
    from this process.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        raise ValueError("it is empty")
    length = ctypes.c_size_t(size)
    may = mmap.PROT_READ | mmap.PROT_WRITE
    start = LIBC.mmap(None, length, may, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    if start == FAILED:
        raise OSError(ctypes.get_errno(), "cannot be mapped")
    memory = (ctypes.c_uint8 * size).from_address(start)
    weakref.finalize(memory, LIBC.munmap, ctypes.c_void_p(start), length).atexit = False
    return np.ctypeslib.as_array(memory)


def touch(memory: Bytes) -> None:
    """Map every page: a first touch is slow. Kernels before 5.14 do without."""
    start, length = memory.ctypes.data, len(memory)
    for offset in range(0, length, 1 << 26):
        size = ctypes.c_size_t(min(1 << 26, length - offset))
        LIBC.madvise(ctypes.c_void_p(start + offset), size, POPULATE_WRITE)
