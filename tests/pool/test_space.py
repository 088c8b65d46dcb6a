"""Room among entries: never over another, never past the end, and no entry leaves that need not."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.kv.layout import aligned
from genrec.pool.pool import Pool
from genrec.pool.space import place
from tests.pool.entries import STEP, find, hashes, write

TOTAL = 12
INFINITE = float("inf")


def slow_twin(starts, sizes, worth, size):
    """The least worth up to which entries must leave, tried one by one; None where even all are too few."""
    for limit in [-INFINITE, *sorted({w for w in worth if w < INFINITE})]:
        stay = [False] * TOTAL
        for start, length, value in zip(starts, sizes, worth, strict=True):
            if value > limit:
                stay[start : start + length] = [True] * length
        if any(not any(stay[at : at + size]) for at in range(TOTAL - size + 1)):
            return limit
    return None


@st.composite
def layouts(draw):
    cuts = sorted(draw(st.sets(st.integers(0, TOTAL), max_size=8)))
    pairs = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    worth = [draw(st.sampled_from([0.0, 1.0, 2.0, 3.0, INFINITE])) for _ in pairs]
    return [a for a, _ in pairs], [b - a for a, b in pairs], worth


@settings(max_examples=300, deadline=None)
@given(layouts(), st.integers(1, TOTAL + 1))
def test_equals_trying_every_place(layout, size):
    starts, sizes, worth = layout
    limit = slow_twin(starts, sizes, worth, size)
    found = place(starts, sizes, worth, size, TOTAL)
    assert (found is None) == (limit is None)
    if found is None:
        return
    offset, leaving = found
    assert 0 <= offset <= TOTAL - size
    over = {
        i for i, (a, n) in enumerate(zip(starts, sizes, strict=True)) if a < offset + size and a + n > offset
    }
    assert set(leaving.tolist()) == over
    assert max((worth[i] for i in over), default=-INFINITE) == limit


def test_the_narrowest_gap_is_taken():
    offset, leaving = place([4, 7], [1, 1], [9.0, 9.0], 2, TOTAL)
    assert (offset, leaving.tolist()) == (5, [])
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_of_many_entries_the_least_two_neighbours_leave():
    starts = np.arange(20_000) * 2
    offset, leaving = place(starts, np.ones(20_000), np.arange(20_000.0), 3, 40_000)
    assert (offset, leaving.tolist()) == (0, [0, 1])


def test_where_every_row_of_the_table_is_taken_the_oldest_leaves_unless_all_are_read(tmp_path, clock):
    """However much memory is free."""
    Pool.create(tmp_path / "pool", 1 << 20, 0, 0)
    pool = Pool(tmp_path / "pool", clock.read)
    for user in range(64):
        clock.go(1)
        assert write(pool, user, [1], size=100)
    assert len(pool._map.table.entries) == pool.usage()["entries"] == 64
    read = [pool.find_user(hashes(pool, user, [1]), STEP) for user in range(64)]
    assert write(pool, 64, [1], size=100) is None and all(find(pool, user, [1]) for user in range(64))
    for entry in read:
        pool.release(entry)
    assert write(pool, 64, [1], size=100)
    assert [user for user in range(65) if find(pool, user, [1]) is None] == [0]
