"""Two nodes' pools over one store, in a network of their own: run by test_mooncake.py, which says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from genrec.nodes.mooncake import Mooncake, _item
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from tests.pool.entries import STEP, find, hashes, keys, write

MASTER = (
    "mooncake_master", "--rpc_address=127.0.0.1", "--rpc_port=21051", "--metrics_host=127.0.0.1",
    "--metrics_port=21003", "--rpc_thread_num=2", "--client_ttl=3",
)  # fmt: skip
SOON = 30.0  # seconds: far more than any of it takes


def until_joined(host: str, segment_bytes: int) -> Mooncake:
    """A node, once the master listens."""
    from genrec.errors import InputError

    end = time.monotonic() + SOON
    while True:
        try:
            return Mooncake("127.0.0.1:21051", host, segment_bytes, 16 << 20)
        except InputError:
            assert time.monotonic() < end
            time.sleep(0.2)


def make(folder: Path) -> Pool:
    Pool.create(folder, 40_960, 6, 64, secret=bytes(32))
    return Pool(folder)


def items_travel(far: Pool, here: Mooncake, there: Mooncake) -> None:
    rows = np.array([[1] * 64, [2] * 64], np.uint8)
    taken = here.put_items(keys(1, 2), rows, SOON)
    assert taken is not None and taken.tolist() == [True, True]
    assert there.have_items(keys(1, 2, 9), SOON).tolist() == [True, True, False]
    assert there.bring_items(far, keys(1, 2, 3, 9), SOON)
    found = far.item_rows(keys(1, 2, 3, 9))
    assert (found >= 0).tolist() == [True, True, False, False]
    assert far.items_memory.reshape(-1, 64)[found[:2], 0].tolist() == [1, 2]
    assert there.bring_items(far, keys(1, 2), SOON), "there is nothing to bring"


def users_travel(near: Pool, far: Pool, here: Mooncake, there: Mooncake) -> None:
    owner = owner_key(near.secret, 7)
    write(near, 7, [1, 2])
    assert here.send_user(near, hashes(near, 7, [1, 2]), STEP, owner, SOON)
    grown = hashes(far, 7, [1, 2, 3, 4])
    assert there.bring_user(far, grown, STEP, owner, SOON)
    assert find(far, 7, [1, 2, 3, 4]) == (6, 6, 7)
    assert there.bring_user(far, hashes(far, 8, [1, 2]), STEP, owner_key(far.secret, 8), SOON)
    assert find(far, 8, [1, 2]) is None
    write(far, 7, [1, 2, 3], fill=9)
    assert there.bring_user(far, grown, STEP, owner, SOON)
    assert find(far, 7, [1, 2, 3]) == (9, 9, 9), "a shorter entry took the place of a longer one"
    assert here.forget(owner, SOON)
    forget(far, owner)
    assert there.bring_user(far, grown, STEP, owner, SOON) and find(far, 7, [1, 2]) is None


def what_is_not_whole_is_refused(far: Pool, here: Mooncake, there: Mooncake) -> None:
    here._put([_item(key) for key in _words(21, 22)], _words(22, 22), [np.full(64, 21, np.uint8)] * 2)
    here._put([_item(_words(23)[0])], _words(23), [np.full(32, 23, np.uint8)])
    assert there.bring_items(far, keys(21, 22, 23), SOON)
    assert (far.item_rows(keys(21, 22, 23)) >= 0).tolist() == [False, True, False]
    assert far.usage()["items"] == 3, "a refused row is still held"


def _words(*items: int) -> np.ndarray:
    return np.frombuffer(b"".join(keys(*items)), np.uint64).reshape(-1, 2)


def without_the_master_nobody_waits(far: Pool, there: Mooncake, master: subprocess.Popen) -> None:
    os.kill(master.pid, signal.SIGKILL)
    master.wait()
    there.bring_items(far, keys(4), SOON)
    there.put_items(keys(4), np.zeros((1, 64), np.uint8), 0.0)
    assert not there.bring_items(far, keys(4), 0.0)
    assert far.item_rows(keys(1, 2, 4)).tolist()[2] == -1 and (far.item_rows(keys(1, 2)) >= 0).all()
    write(far, 3, [1])
    assert find(far, 3, [1]) == (3, 3, 3)


def main(folder: Path) -> None:
    master = subprocess.Popen(MASTER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        near, far = make(folder / "near"), make(folder / "far")
        here, there = until_joined("127.0.0.1:21201", 64 << 20), until_joined("127.0.0.1:21202", 64 << 20)
        items_travel(far, here, there)
        users_travel(near, far, here, there)
        what_is_not_whole_is_refused(far, here, there)
        without_the_master_nobody_waits(far, there, master)
    finally:
        master.kill()
        master.wait()
    print("as it should be", flush=True)
    os._exit(0)  # the store's own end waits for the master


if __name__ == "__main__":
    main(Path(sys.argv[1]))
