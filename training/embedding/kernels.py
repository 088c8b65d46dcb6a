"""Which kernels a dynamic table runs on: compiled C++ where there is g++, else numba."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from genrec.compiled import can_be_compiled
from training.embedding.compiled import Compiled
from training.embedding.portable import Portable

Kernels: TypeAlias = Compiled | Portable


@cache
def best_kernels() -> Kernels:
    """The faster ones that can be had here."""
    return Compiled() if can_be_compiled() else Portable()
