"""KV of rankings that stays on the device: users' entries, and a table of items' (RelayGR's tier of device memory).

What an entry holds follows from its name alone (`genrec.pool.keys`), so a copy is never stale. The least recently used
leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.host import PageLocked, tensor_of
from genrec.engine.interface import Array, UserName
from genrec.pool.owner import TTL_S


class _User(NamedTuple):
    kv: Tensor
    until: float  # on the clock


class KeptUsers:
    """Up to so many bytes of users' entries [2N, G, S, D].

    They are personal data. At the next ranking all are dropped if any user was forgotten, and each one older than the
    pool's lifetime.
    """

    def __init__(
        self, device: torch.device, most: int, wipe: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`wipe` clears what others have of users, whenever any of them is dropped for being forgotten or old."""
        self._device, self._most, self._wipe, self._clock = device, most, wipe, clock
        self.locked = PageLocked(device)  # the memory where the pool has them
        self._kept: dict[bytes, _User] = {}  # the least recently used first
        self._forgot_ns = 0

    def entry(self, name: UserName | None, entry: Array) -> Tensor:
        """On the device: the copy that is there, or one of `entry` [1, 2N, G, S, D] on the host, which it has read when
        this returns. One without a name is not kept.
        """
        now = self._clock()
        if name and name.forgot_ns != self._forgot_ns:
            self._kept.clear()
            self._wipe()
            self._forgot_ns = name.forgot_ns
        if old := [key for key, each in self._kept.items() if now >= each.until]:
            self._wipe()
            for key in old:
                del self._kept[key]
        key = name.key if name else b""
        found = self._kept.pop(key, None)
        if found is None:
            self.locked.hold(entry)
            # Copied also where the device is a CPU: the pool may give the place to another user
            found = _User(tensor_of(entry[0]).to(self._device, copy=True), now + TTL_S)
        if key:
            self._kept[key] = found
        while sum(each.kv.nbytes for each in self._kept.values()) > self._most:
            del self._kept[next(iter(self._kept))]
        return found.kv


class KeptItems:
    """A table [2N, M, t, G, D] of items on the device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, shape: Sequence[int], places: int) -> None:
        """`shape` is that of an item on the host: [2N, G, t, D]; `places` is M."""
        tensors, heads, tokens, size = shape
        self.table = torch.zeros(tensors, places, tokens, heads, size, dtype=dtype, device=device)
        self.places, self.locked = places, PageLocked(device)  # the memory where the pool has them
        self._rows: dict[object, int] = {}  # the least recently used first
        self._spare = list(range(places))

    def rows(
        self, names: NDArray[np.uint64] | None, host: Array, rows: Array, unchanged: Callable[[], bool]
    ) -> NDArray[np.int64]:
        """Where in the table the items are that are rows [C] of `host` [M', 2N, G, t, D]; what is missing is copied.

        `names` uint64 [C, 2]; items without are copied anew, and so are those that were not `unchanged` when they had
        been read. At most `places` of them differ. What this gives is valid until the next call.
        """
        keys: list[object] = [object() for _ in rows] if names is None else _keys(names)
        new: dict[object, int] = {}
        for place, key in enumerate(keys):
            if key in self._rows:
                self._rows[key] = self._rows.pop(key)  # the newest now
            else:
                new.setdefault(key, place)
        there = dict(zip(new, self._spare_rows(len(new)), strict=True))
        if new:
            self._copy(host, rows[list(new.values())], list(there.values()))
        found = [self._rows[key] if key in self._rows else there[key] for key in keys]
        if new and names is not None and unchanged():
            del self._spare[-len(new) :]
            self._rows.update(there)
        return np.array(found, np.int64)

    def _copy(self, host: Array, rows: Array, into: list[int]) -> None:
        """Rows of the host's table into rows of this one; the device has read them when this returns."""
        self.locked.hold(host)
        device = self.table.device
        copied = self.table.new_empty(len(rows), *host.shape[1:])
        for to, row in zip(copied, rows, strict=True):
            to.copy_(tensor_of(host[row]), non_blocking=True)
        self.table[:, torch.tensor(into, device=device)] = copied.permute(1, 0, 3, 2, 4)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def _spare_rows(self, count: int) -> list[int]:
        """So many rows of the table that nobody has; items not used for longest lose theirs."""
        while len(self._spare) < count:
            self._spare.append(self._rows.pop(next(iter(self._rows))))
        return self._spare[-count:] if count else []


def _keys(names: NDArray[np.uint64]) -> list[object]:
    """Bytes, without zeros at their ends: of names that are equally long these differ as the names do."""
    keys: list[object] = np.ascontiguousarray(names).view("S16")[:, 0].tolist()
    return keys
