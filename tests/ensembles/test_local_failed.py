"""A local runtime that cannot be loaded leaves nothing behind: no thread, no folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ensembles.local import LocalRecommender, LocalRuntime
from ensembles.recommend import recommend
from genrec import steps
from genrec.settings import Settings

SHM = Path("/dev/shm")


@pytest.fixture
def before() -> set[threading.Thread]:
    return set(threading.enumerate())


def streams(before: set[threading.Thread]) -> list[str]:
    """Threads of schedulers that were not there before."""
    return [each.name for each in set(threading.enumerate()) - before if "_work" in each.name]


def test_steps_that_are_loaded_end_where_a_later_one_cannot_be(
    tiny: Path, tmp_path: Path, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(steps.STEPS, "validity_lookup", "NoSuchStep")
    with pytest.raises(AttributeError, match="NoSuchStep"):
        LocalRuntime(recommend(), Settings(tiny, tmp_path / "arena", 16))
    assert not streams(before)


def test_rankings_end_where_what_is_ahead_of_them_cannot_be_loaded(
    tiny_ranker: Path, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(steps.STEPS, "encode_prefix", "NoSuchStep")
    mine = f"genrec-*-{os.getpid()}-*"  # another process runs tests beside this one
    folders = set(SHM.glob(mine))
    with pytest.raises(AttributeError, match="NoSuchStep"):
        LocalRecommender(tiny_ranker, 16, decoder="rank", pool_user_mb=1, pool_item_mb=1)
    assert not streams(before) and set(SHM.glob(mine)) <= folders


def test_what_one_that_was_killed_has_left_goes_with_the_next(tiny: Path) -> None:
    """Its pool has KV of users."""
    left = 'from genrec import leftovers; print(leftovers.own_prefix() + "left")'
    name = subprocess.run([sys.executable, "-c", left], capture_output=True, text=True, check=True).stdout
    folder = SHM / name.strip()
    folder.mkdir()
    with LocalRecommender(tiny, 16):
        assert not folder.exists()
