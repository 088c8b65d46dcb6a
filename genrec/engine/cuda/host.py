"""Arrays of the host and tensors of a device."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from genrec.engine.interface import Array

ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered: users and items of a pool lie in one mapping
log = logging.getLogger("genrec.cuda")


def tensor_of(array: Array) -> Tensor:
    """The host's memory as a tensor; NumPy has no bf16, its bits travel as uint16."""
    if not array.flags.writeable:  # torch warns of memory that it could write to
        array = array.view()
        array.flags.writeable = True
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


class PageLocked:
    """A file's mapping that the device copies from and to by itself; other memory takes it seven times as long.

    One mapping at a time, that of the pool's users or of its items; a pool that was lost has another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mapping: ctypes.Array[ctypes.c_uint8] | None = None
        self._unlock: weakref.finalize[..., PageLocked] | None = None

    def hold(self, array: Array) -> None:
        """Lock the mapping that `array` lies in, until another is; memory of other kinds stays as it is."""
        mapping = _mapping_of(array) if self._device.type == "cuda" else None
        if mapping is None or mapping is self._mapping:
            return
        if self._unlock:
            self._unlock()
        self._mapping, self._unlock = mapping, None  # also where it fails: not to be tried at every ranking
        runtime = torch.cuda.cudart()
        if refused := int(runtime.cudaHostRegister(ctypes.addressof(mapping), len(mapping), 0)):
            if refused != ALREADY:
                log.warning("cuda: %d MB cannot be page-locked: copies are slow", len(mapping) >> 20)
            with suppress(RuntimeError):  # torch tells of the call that failed at its next launch
                torch.zeros(1, device=self._device)
            return
        # Before its pages go: what comes to lie at their addresses could not be locked.
        self._unlock = weakref.finalize(self, _unlock, mapping, runtime.cudaHostUnregister)
        self._unlock.atexit = False


def _unlock(mapping: ctypes.Array[ctypes.c_uint8], unregister: Callable[[int], object]) -> None:
    unregister(ctypes.addressof(mapping))


def _mapping_of(array: Array) -> ctypes.Array[ctypes.c_uint8] | None:
    """The whole mapping of a file (`genrec.pool.memory.mapped`) that an array is a part of."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    found = base.obj if isinstance(base, memoryview) else base
    return found if isinstance(found, ctypes.Array) else None
