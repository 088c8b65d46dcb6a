"""A store of several nodes that anybody can check: a file per item. It may be gone, or hang."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.pool.items import NONE, Rows
from genrec.pool.keys import Words
from genrec.pool.look import absent
from genrec.pool.pool import Pool


class FolderStore:
    """`hangs`: it takes all the time that it is given, and says nothing. It has room for `most` items."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hangs, self.asked, self.most = folder, False, 0, 1 << 20
        folder.mkdir(exist_ok=True)

    def _name(self, key: Words) -> Path:
        return self.folder / key.tobytes().hex()

    def _hung(self, timeout_s: float) -> bool:
        self.asked += 1
        if self.hangs:
            time.sleep(timeout_s)
        return self.hangs

    def bring_items(self, pool: Pool, keys: Words, timeout_s: float, spared: Rows = NONE) -> bool:
        if self._hung(timeout_s):
            return False
        wanted = np.array([key for key in keys[absent(pool, keys)] if self._name(key).exists()], np.uint64)
        rows = pool.write_items(wanted.reshape(-1, 2), spared=spared)
        memory = pool.items_memory.reshape(-1, pool.item_row_bytes)
        for row, key in zip(rows.tolist(), wanted, strict=True):
            if row >= 0:
                memory[row] = np.fromfile(self._name(key), np.uint8)
        pool.commit_items(rows)
        return True

    def put_items(self, keys: Words, rows: NDArray[np.uint8], timeout_s: float) -> NDArray[np.bool_] | None:
        if self._hung(timeout_s):
            return None
        taken = np.zeros(len(keys), bool)
        for at, (key, row) in enumerate(zip(keys, rows, strict=True)):
            taken[at] = self._name(key).exists() or len(list(self.folder.iterdir())) < self.most
            if taken[at]:
                row.tofile(self._name(key))
        return taken

    def have_items(self, keys: Words, timeout_s: float) -> NDArray[np.bool_] | None:
        if self._hung(timeout_s):
            return None
        return np.array([self._name(key).exists() for key in keys], bool)

    def close(self, timeout_s: float) -> bool:
        return not self._hung(timeout_s)

    def lose(self) -> None:
        """As when its master ends: all that was put is gone."""
        for file in self.folder.iterdir():
            file.unlink()
