"""What was worked out of choices of groups, for the next request that makes the same one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy.typing as npt

MOST, MOST_BYTES = 256, 128 << 20  # that are kept; a choice of most of a large catalogue takes megabytes

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """What `make` gives for the keys that were asked for last, as many as `MOST` and `MOST_BYTES` let; the newest in
    any case. `arrays`: those that it consists of. May be called from any thread.
    """

    def __init__(self, make: Callable[[K], V], arrays: Callable[[V], tuple[npt.NDArray[Any], ...]]) -> None:
        self._make, self._arrays = make, arrays
        # With its bytes; the least recently used first
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, key: K) -> V:
        """Of late it costs nothing."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        made = self._make(key)  # others need not wait; two may make the same
        size = sum(array.nbytes for array in self._arrays(made))
        with self._lock:
            self._bytes += size - self._kept.pop(key, (made, 0))[1]
            self._kept[key] = made, size
            while len(self._kept) > 1 and (len(self._kept) > MOST or self._bytes > MOST_BYTES):
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return made
