"""Several processes and one copy; whatever is killed, removed or stopped, nothing leaks and nobody waits."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from genrec.errors import ArtifactError, InputError
from genrec.pool import user_rows
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.mapping import NAME, PROCESSES, Mapping
from genrec.pool.pool import Pool
from tests.pool.entries import STEP, find, hashes, in_a_child, keys, write
from tests.serving.processes import until

CHILD = """
import sys, time
from pathlib import Path
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from tests.pool.entries import STEP, hashes, keys
pool = Pool(Path(sys.argv[1]), lambda: 0)
name = hashes(pool, 7, [1, 2])
if sys.argv[2] == "reads":
    held = pool.find_user(name, STEP)
if sys.argv[2] in ("writes", "commits"):
    writing = pool.write_user(name, 6, 9000, owner_key(pool.secret, 7))
    writing.memory[:] = 7
    rows = pool.write_items(keys(*range(6)))
if sys.argv[2] == "commits":
    pool.commit(writing)
    pool.commit_items(rows)
if sys.argv[2] == "locks":
    pool._map.lock()
print("ready", flush=True)
time.sleep(60)
"""


class Child:
    def __init__(self, folder, does):
        command = [sys.executable, "-c", CHILD, str(folder), does]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which counts as dead

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_another_process_reads_the_same_bytes(pool, folder):
    with Child(folder, "commits"):
        assert find(pool, 7, [1, 2]) == (6, 6, 7)
        assert pool.item_rows(keys(*range(6))).tolist() == list(range(6))


def test_what_a_dead_process_has_committed_stays(pool, folder):
    with Child(folder, "commits") as child:
        child.kill()
        assert pool.usage()["entries"] == 1
        assert find(pool, 7, [1, 2]) == (6, 6, 7)
        assert (pool.item_rows(keys(*range(6))) >= 0).all()


def test_a_killed_writer_leaks_nothing(pool, folder):
    with Child(folder, "writes") as child:
        name, owner = hashes(pool, 7, [1, 2]), owner_key(pool.secret, 7)
        assert pool.write_user(name, 6, 9000, owner) is None, "two compute the same"
        assert write(pool, 8, [1], size=9000) is None and pool.write_items(keys(1)).tolist() == [-1]
        child.kill()
        assert find(pool, 7, [1, 2]) is None
        assert pool.write_user(name, 6, 9000, owner) is not None
        assert sorted(pool.write_items(keys(*range(10, 16))).tolist()) == list(range(6))


def test_a_killed_reader_leaks_nothing(pool, folder):
    write(pool, 7, [1, 2], size=9000)
    with Child(folder, "reads") as child:
        assert write(pool, 8, [1], size=9000) is None
        assert forget(pool, owner_key(pool.secret, 7)) == 1
        assert write(pool, 8, [1], size=9000) is None
        child.kill()
        assert write(pool, 8, [1], size=9000)


def test_a_killed_holder_of_the_lock_gives_it_back(pool, folder):
    write(pool, 7, [1, 2])
    with Child(folder, "locks") as child:
        child.kill()
        assert find(pool, 7, [1, 2])


def test_a_stopped_holder_of_the_lock_delays_no_request(pool, folder, caplog):
    write(pool, 7, [1, 2])
    held = pool.find_user(hashes(pool, 7, [1, 2]), STEP)
    writing = pool.write_user(hashes(pool, 8, [1]), 3, 100, owner_key(pool.secret, 8))
    writing.memory[:] = 8
    dropped = pool.write_user(hashes(pool, 9, [1]), 3, 100, owner_key(pool.secret, 9))
    rows = pool.write_items(keys(1, 2))
    with Child(folder, "locks") as child:
        os.kill(child.process.pid, signal.SIGSTOP)
        assert pool.find_user(hashes(pool, 7, [1, 2]), STEP) is None
        assert pool.item_rows(keys(1)).tolist() == [-1]
        assert pool.usage() is None and forget(pool, owner_key(pool.secret, 7)) is None, "nothing was deleted"
        pool.release(held)
        pool.commit(writing)
        pool.abandon(dropped)
        pool.commit_items(rows)
        assert caplog.text.count("too long") == 1 and not pool.lost, "each of them waited"
        child.kill()
    assert pool.usage()["entries"] == 2 and pool.usage()["items"] == 2
    assert find(pool, 7, [1, 2]) and find(pool, 8, [1]) == (3, 3, 8)
    assert not pool._map.table.pins.any(), "a release was lost"


@pytest.mark.parametrize("how", ["removed", "cut", "its end cut", "replaced"])
def test_a_lost_file_is_an_empty_pool(pool, folder, how):
    write(pool, 7, [1, 2])
    held = pool.find_user(hashes(pool, 7, [1, 2]), STEP)
    file = folder / NAME
    if how == "cut":
        os.truncate(file, 64)
    elif how == "its end cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        content = file.read_bytes()
        file.unlink()
        if how == "replaced":
            file.write_bytes(content)
    assert pool.find_user(hashes(pool, 7, [1, 2]), STEP) is None and pool.lost
    assert pool.item_rows(keys(1)).tolist() == [-1] == pool.write_items(keys(1)).tolist()
    assert write(pool, 7, [1]) is None and pool.usage() is None and forget(pool, bytes(16)) is None
    assert pool.item_generations(np.array([0])).tolist() == [-1]
    if how != "cut":  # what was cut is gone from under everybody
        assert (held.memory == 7).all()
    pool.release(held)
    Pool.create(folder, 10_240, 6, 64)
    again = Pool(folder)
    assert write(again, 7, [1]) and find(again, 7, [1])


def test_a_pool_that_nobody_has_any_more_keeps_no_files_open(pool, folder):
    def open_files():
        return sum(each.path.startswith(str(folder)) for each in psutil.Process().open_files())

    before = open_files()
    assert find(Pool(folder), 7, [1]) is None
    until(lambda: open_files() == before, open_files)  # threads touch its memory still
    pool._map.lock()  # closing a file of the pool would let another process have it
    Pool(folder)
    pool._map.unlock()
    until(lambda: open_files() == before + 1, open_files)


@pytest.mark.parametrize("size", [0, 64, 4096, 1 << 20])
def test_a_file_of_another_size_is_no_pool(folder, size):
    os.truncate(folder / NAME, size)
    with pytest.raises(ArtifactError, match="not a KV pool"):
        Mapping(folder)
    assert Pool(folder).lost


def test_a_pool_that_is_not_there_is_lost(folder, tmp_path):
    assert Pool(tmp_path / "nowhere").lost
    shutil.rmtree(folder)
    assert Pool(folder).find_user([bytes(16), bytes(16)], 1) is None


def test_where_others_can_write_there_is_no_pool(folder):
    folder.chmod(0o777)
    assert Pool(folder).lost
    with pytest.raises(InputError, match="written to by others"):
        Pool.create(folder, 10_240, 6, 64)


def test_a_damaged_table_is_an_empty_pool(pool, caplog):
    write(pool, 7, [1, 2])
    pool._map.table.entries[:, user_rows.START] = 2**62
    assert find(pool, 7, [1, 2]) is None
    assert "damaged" in caplog.text or "torn" in caplog.text


@pytest.mark.parametrize("word", [user_rows.GENERATION, user_rows.SPAN, user_rows.PAYLOAD])
def test_a_row_that_says_other_than_what_lies_there_is_not_believed(pool, caplog, word):
    """The KV of another span would be read as if it were this one's."""
    write(pool, 7, [1, 2])
    pool._map.table.entries[:, word] += 1
    assert find(pool, 7, [1, 2]) is None and "torn" in caplog.text


def test_a_table_that_is_damaged_while_an_entry_is_written_is_an_empty_pool(pool, caplog):
    asked = hashes(pool, 7, [1, 2])
    writing = pool.write_user(asked, 2 * STEP, 1000, owner_key(pool.secret, 7))
    pool._map.table.entries[writing.entry, user_rows.START] = 2**62
    pool.commit(writing)
    assert pool.lost and "the table is damaged" in caplog.text
    assert pool.find_user(asked, STEP) is None and pool.usage() is None


def test_more_processes_than_seats_do_without(pool, caplog):
    write(pool, 7, [1, 2])
    seats = pool._map.table.processes
    before = seats.copy()
    seats[:] = seats[0]  # this process everywhere: all alive
    pool._map._seat = None
    assert pool.find_user(hashes(pool, 7, [1, 2]), STEP) is None
    assert f"{PROCESSES} processes" in caplog.text
    seats[:] = before
    assert find(pool, 7, [1, 2])


def test_a_forked_child_sits_for_itself(pool):
    write(pool, 7, [1, 2])

    def sits() -> bool:
        entry = pool.find_user(hashes(pool, 7, [1, 2]), STEP)
        return entry is not None and pool._map.table.pins.any(0).argmax() != 0

    assert in_a_child(sits)
    assert pool._map.table.pins.any()
    pool.usage()
    assert not pool._map.table.pins.any()


RANDOM = """
import sys
from pathlib import Path
import numpy as np
from genrec.pool.pool import Pool
from tests.pool.entries import STEP, find, keys, write
pool = Pool(Path(sys.argv[1]))
g = np.random.default_rng(int(sys.argv[2]))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    user, items = int(g.integers(6)), g.integers(0, 2, g.integers(1, 4)).tolist()
    if g.random() < 0.5:
        write(pool, user, items, size=int(g.integers(1, 4000)))
    else:
        found = find(pool, user, items)
        assert found is None or found[2] == user, (found, user)
    wanted = g.integers(0, 12, 4).tolist()
    rows, before = pool.find_items(keys(*wanted))
    bytes_read = pool.items_memory.reshape(-1, 64)[rows].copy()
    same = pool.item_generations(rows) == before
    for item, row, value, true in zip(wanted, rows, bytes_read, same):
        assert row < 0 or not true or (value == item).all(), (item, value)
    rows = pool.write_items(keys(*wanted))
    for item, row in zip(wanted, rows):
        if row >= 0:
            pool.items_memory.reshape(-1, 64)[row] = item
    pool.commit_items(rows)
print("done", flush=True)
"""


def test_processes_that_write_read_and_die_at_random(pool, folder):
    """Three at a time, two of which are killed at a random moment: no wrong byte is read, nothing is left over."""
    g = np.random.default_rng(0)
    for turn in range(2):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", RANDOM, str(folder), str(3 * turn + i), "150" if not i else "1000000"],
                stdout=subprocess.PIPE,
            )
            for i in range(3)
        ]
        try:
            for child in children:
                assert child.stdout.readline() == b"ready\n"
            for child in children[1:]:
                time.sleep(g.random() * 0.05)  # a random moment, which decides nothing
                child.kill()
            assert children[0].stdout.readline() == b"done\n" and children[0].wait() == 0
        finally:
            for child in children:
                child.kill()
                child.wait()
                child.stdout.close()
    pool.usage()
    states = pool._map.table.entries[:, user_rows.STATE]
    assert not (states == user_rows.WRITING).any() and not (states == user_rows.LEAVING).any()
    assert not pool._map.table.pins.any() and not (pool._map.table.row_state == 1).any()
    assert write(pool, 7, [1], size=9000)
