"""Histories that are mapped from a file, where the disk of temporary files is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from genrec.errors import InputError
from training.data import histories
from training.data.histories import Histories


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write to a map of a file that has no blocks would end the process, by SIGBUS."""
    path, asked = tmp_path / "histories.parquet", []
    Histories(np.arange(9), np.arange(45), np.arange(0, 46, 5)).save(path, [str(user) for user in range(9)])

    def full(descriptor: int, start: int, size: int) -> None:
        asked.append((start, size))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(histories, "IN_MEMORY", 44)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"^TMPDIR: \S+ has no room for 0 MB of histories: No space left"):
        Histories.load(path)
    assert asked == [(0, 8 * 45)]
