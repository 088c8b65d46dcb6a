"""Memory of a pool that is borrowed: nobody has to leave for it, and several have it at once."""

from __future__ import annotations

from pathlib import Path

from genrec.pool.pool import Pool
from genrec.pool.rehearsal import borrowed

SIZE = 1 << 16


def test_it_is_never_an_entry_and_others_have_theirs_meanwhile(tmp_path: Path) -> None:
    Pool.create(tmp_path, 1 << 20, 0, 64)
    with borrowed(Pool(tmp_path), 8, SIZE) as one, borrowed(Pool(tmp_path), 8, SIZE) as other:
        assert one is not None and other is not None and len(one) == len(other) == SIZE
    usage = Pool(tmp_path).usage()
    assert usage and usage["entries"] == 0 == usage["bytes"]


def test_nobody_leaves_a_full_pool_for_it(tmp_path: Path) -> None:
    Pool.create(tmp_path, 1 << 20, 0, 64)
    pool = Pool(tmp_path)
    for n in range(40):
        if writing := pool.write_user([bytes([n] * 16)], 8, SIZE, bytes(16)):
            pool.commit(writing)
    before = pool.usage()
    with borrowed(pool, 8, SIZE) as memory:
        assert memory is None
    assert before and before["entries"] > 0 and pool.usage() == before
