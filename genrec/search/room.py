"""Memory for work arrays that is used again and again (xGR, section 6.3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from genrec.kv.layout import LINE


class Room:
    """Memory that is handed out in pieces, taken back as a whole, and grows to the largest use seen."""

    def __init__(self) -> None:
        self._memory, self._used, self._wanted = np.empty(0, np.uint8), 0, 0

    def clear(self) -> None:
        """Take everything back."""
        if self._wanted > len(self._memory):
            self._memory = np.empty(self._wanted, np.uint8)
        self._used = self._wanted = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array whose contents are left over; a fresh one where the memory is too small this once."""
        size = -(-math.prod(shape) * dtype.itemsize // LINE) * LINE
        self._wanted += size
        if self._used + size > len(self._memory):
            return np.empty(shape, dtype)
        start, self._used = self._used, self._used + size
        return self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
