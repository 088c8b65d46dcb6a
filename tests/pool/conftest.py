from types import SimpleNamespace

import pytest

from genrec.pool import mapping
from genrec.pool.pool import Pool


@pytest.fixture(autouse=True)
def every_call_looks(monkeypatch):
    """What is lost, and who has died, is seen at once."""
    monkeypatch.setattr(mapping, "LOOK_S", 0.0)
    monkeypatch.setattr(mapping, "DEAD_S", 0.0)


@pytest.fixture
def folder(tmp_path):
    """A pool with room for a little over 10 kB of users and 6 items."""
    Pool.create(tmp_path / "pool", user_bytes=10_240, item_rows=6, item_row_bytes=64)
    return tmp_path / "pool"


@pytest.fixture
def clock():
    """A clock in ns that stands until it is told to go on."""
    time = SimpleNamespace(now=0)
    time.read = lambda: time.now
    time.go = lambda seconds: setattr(time, "now", time.now + int(seconds * 1e9))
    return time


@pytest.fixture
def pool(folder, clock):
    return Pool(folder, clock.read)
