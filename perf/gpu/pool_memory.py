"""Host memory as a KV pool's is."""

from __future__ import annotations

import math
import tempfile

import numpy as np
from numpy.typing import NDArray

from genrec.pool.memory import mapped


def pool_memory(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """KV of a shape, in a file's mapping, which target `cuda` page-locks."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(2 * math.prod(shape))
        return mapped(file.fileno()).view(np.uint16).reshape(shape)
