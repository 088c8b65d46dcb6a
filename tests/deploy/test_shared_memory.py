"""What a server takes of /dev/shm is known before it takes any."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import shared_memory
from deploy.launch import NoRoom
from genrec.settings import Settings


def test_the_pool_s_table_counts(tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(shared_memory, "_check_room", lambda *sizes: asked.append(sizes))
    pool = tmp_path / "pool"
    settings = Settings(
        tiny_ranker, tmp_path / "arena", pool=pool, pool_user_mb=3, pool_item_mb=2, swap=tmp_path / "swap"
    )
    shared_memory.prepare(settings, 2, 1)
    size = (pool / "pool").stat().st_size
    assert 5 << 20 < size == asked[0][1]
    assert asked[0][0] <= (tmp_path / "arena").stat().st_size


def test_a_limit_of_memory_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container whose /dev/shm is larger: the launcher was killed as it made the pool, without a word."""
    monkeypatch.setattr(shared_memory, "memory_left", lambda: 7 << 20)
    shared_memory._check_room(0, 3 << 20, 3 << 20)
    with pytest.raises(
        NoRoom, match=r"needs 8 MiB: 7 MiB for the pool .* \(accepted: 7 MiB, which the limit of memory"
    ):
        shared_memory._check_room(0, 7 << 20, 0)
