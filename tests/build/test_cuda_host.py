"""The pool's memory on its way to a device that is not there: what is page-locked, when, and until when."""

import os
import shutil

import numpy as np
import pytest
import torch

from build.cuda.engines import build_engines as build_cuda
from genrec.engine.cuda.host import PageLocked, _mapping_of
from genrec.pool import memory
from genrec.pool.pool import Pool
from tests.genrec.steps.kept import starting

CPU = torch.device("cpu")


class FakeDriver:
    """Of a device that is not there: which addresses are locked; an address of `refused` cannot be."""

    def __init__(self):
        self.locked, self.refused, self.calls = {}, set(), 0

    def cudaHostRegister(self, address, size, flags):
        self.calls += 1
        if address in self.refused or address in self.locked:
            return 712 if address in self.locked else 2
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address):
        del self.locked[address]


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr("torch.cuda.cudart", lambda: fake)
    monkeypatch.setattr("torch.zeros", lambda *_, **__: None)
    return fake


def mapped(size):
    descriptor = os.memfd_create("pool")
    os.truncate(descriptor, size)
    found = memory.mapped(descriptor)
    os.close(descriptor)
    return found


def test_the_memory_of_a_pool_is_locked(driver, tmp_path):
    Pool.create(tmp_path, 1 << 20, 16, 4096)
    pool, locked = Pool(tmp_path), PageLocked(torch.device("cuda"))
    locked.hold(pool.items_memory[4096:])
    (size,) = driver.locked.values()
    assert size == (tmp_path / "pool").stat().st_size
    writing = pool.write_user([bytes(16)], 8, 4096, bytes(16))
    locked.hold(writing.memory)
    assert driver.calls == 1, "it is all one mapping"


def test_a_mapping_is_locked_once_and_until_another_is(driver):
    locked, one, two = PageLocked(torch.device("cuda")), mapped(8192), mapped(4096)
    for part in (one[100:200], one[:64].view(np.uint16).reshape(2, 16), one):
        locked.hold(part)
    assert driver.locked == {one.ctypes.data: 8192} and driver.calls == 1
    locked.hold(np.zeros(9))
    PageLocked(CPU).hold(two)
    assert driver.calls == 1
    locked.hold(two)
    assert driver.locked == {two.ctypes.data: 4096}
    del locked
    assert driver.locked == {}, "its pages may go, and others come to lie there"


def test_a_mapping_that_cannot_be_locked_is_read_all_the_same(driver, caplog):
    locked, one = PageLocked(torch.device("cuda")), mapped(1 << 21)
    driver.refused.add(one.ctypes.data)
    for _ in range(2):
        locked.hold(one)
    assert driver.calls == 1 and "2 MB cannot be page-locked" in caplog.text
    locked.hold(mapped(4096))
    assert len(driver.locked) == 1


def test_what_another_has_locked_is_no_matter(driver, caplog):
    """Users and items of a pool are in one mapping."""
    one, users, items = mapped(4096), PageLocked(torch.device("cuda")), PageLocked(torch.device("cuda"))
    users.hold(one)
    items.hold(one)
    del items
    assert len(driver.locked) == 1 and driver.calls == 2 and not caplog.text


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("generate", {}),
        *(("score_candidates", {"prefix_choice": choice}) for choice in ("split", "user", "item")),
        ("score_candidates", {"prefix_choice": "split", "pool_user_mb": 0}),
    ],
)
def test_the_pool_s_memory_is_touched_before_the_server_is_ready(
    tiny_ranker, tmp_path, monkeypatch, name, more
):
    """By an entry that nobody can find, in both processes that copy from it or to it, in every order; without users,
    where items' KV is copied from.
    """
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    build_cuda(artifact, "f32", "cpu")
    touched, hold = [], PageLocked.hold

    def seen(self, array):
        touched.append(array)
        hold(self, array)

    monkeypatch.setattr(PageLocked, "hold", seen)
    with starting(name, tmp_path) as start:
        _, settings = start(artifact, "cuda", **more)
        pool = Pool(settings.pool)
        assert any(_mapping_of(each) is not None for each in touched)
        assert pool.usage()["entries"] == 0 == pool.usage()["bytes"]
