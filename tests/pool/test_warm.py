"""Nothing is compiled while the table is locked."""

import numpy as np

from genrec.pool import hotness, index, items, lead, leaving, siphash, space, user_kernels, user_rows
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key, words
from genrec.pool.pool import Pool
from genrec.rank.choice import Request, policy
from tests.pool.entries import STEP, find, hashes, keys, write

KERNELS = (
    index.find, index.find_last, index.put, index.remove, items.look_up, siphash.prefix_hashes, siphash.row_hashes,
    hotness._see, hotness._frequency, hotness._chance, hotness._net, hotness._find, space.find_place, user_rows.used,
    user_rows.standing, user_rows.use, user_rows.unpin, lead.find, user_kernels.find_and_use, user_kernels.survey,
    user_kernels.settle, user_kernels.take_oldest, user_kernels.show, leaving.drop, leaving.end, leaving.vacate,
)  # fmt: skip


def test_every_kernel_is_there_once_a_pool_is_open(folder):
    pool = Pool(folder)
    before = [len(kernel.signatures) for kernel in KERNELS]
    assert all(before)
    write(pool, 12, [1, 2], size=2000)
    pool.rule = policy("hazard", pool.hotness)
    for user in range(12):
        write(pool, user, [1, 2], size=2000)
        find(pool, user, [1, 2, 3])
        name = hashes(pool, user, [1])
        owner = words([owner_key(pool.secret, user)])[0]
        pool.rule.choose(
            Request(1500, 100, STEP), owner, 10**9 * (user + 1), lambda n=name: pool.room(n, 100)
        )
    named = np.frombuffer(b"".join(keys(*range(8))), np.uint64)  # not writable
    pool.commit_items(pool.write_items(named))
    pool.item_rows(keys(1, 9))
    pool.item_rows(named.reshape(-1, 2)[::-2])
    forget(pool, owner_key(pool.secret, 3))
    pool.usage()
    assert [len(kernel.signatures) for kernel in KERNELS] == before
