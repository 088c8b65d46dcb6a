"""Rows of items: a row that is found is whole, and a reader learns when it was taken from under him."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.pool.coldest import FILLING, FREE, HALF_LIFE_S, READY, coldest
from genrec.pool.pool import Pool
from tests.pool.entries import keys


def fill(pool, *items):
    """Write what is absent; the rows that were written."""
    wanted = keys(*items)
    rows = pool.write_items(wanted)
    memory = pool.items_memory.reshape(-1, 64)
    for row, item in zip(rows.tolist(), items, strict=True):
        if row >= 0:
            memory[row] = item
    pool.commit_items(rows)
    return rows[rows >= 0].tolist()


def read(pool, *items):
    """What is in the row of each, -1 where it has none."""
    rows = pool.item_rows(keys(*items))
    memory = pool.items_memory.reshape(-1, 64)
    return [int(memory[row, 0]) if row >= 0 else -1 for row in rows.tolist()]


def test_what_is_committed_is_found_by_another_mapping(pool, folder):
    fill(pool, 1, 2, 3)
    assert read(Pool(folder, pool.clock), 3, 1, 9, 1) == [3, 1, -1, 1]
    assert pool.item_rows(np.frombuffer(b"".join(keys(2)), np.uint64)).tolist() == [1]
    assert pool.item_rows([]).shape == (0,)


def test_a_row_being_filled_is_invisible_and_is_filled_once(pool):
    rows = pool.write_items(keys(1, 2, 1))
    assert sorted(rows.tolist()) == [-1, 0, 1]
    assert read(pool, 1, 2) == [-1, -1]
    assert pool.write_items(keys(1, 2)).tolist() == [-1, -1]
    pool.abandon_items(rows[:1])
    pool.commit_items(rows)
    assert pool.item_rows(keys(1, 2)).tolist() == [-1, 1]
    assert pool.write_items(keys(1, 2)).tolist() == [0, -1]


def test_cold_rows_leave_first(pool, clock):
    fill(pool, *range(6))
    for _ in range(3):
        read(pool, 0, 2, 4)
    read(pool, 1)
    assert len(fill(pool, 6, 7)) == 2
    assert read(pool, *range(8)) == [0, 1, 2, -1, 4, -1, 6, 7]
    clock.go(20 * HALF_LIFE_S)
    read(pool, 6)
    fill(pool, 8, 9)
    assert read(pool, 6) == [6], "one look now is worth more than many long ago"


def test_rows_being_filled_do_not_leave(pool):
    rows = pool.write_items(keys(*range(6)))
    assert sorted(rows.tolist()) == list(range(6))
    assert pool.write_items(keys(6)).tolist() == [-1]
    pool.commit_items(rows)
    assert len(fill(pool, *range(10, 30))) == 6, "more than there is room for"


def test_a_row_that_changed_since_it_was_found_is_seen(pool):
    fill(pool, *range(6))
    rows, before = pool.find_items(keys(0, 9, 5))
    np.testing.assert_array_equal(pool.item_generations(rows), before)
    assert before[1] == -1
    for _ in range(3):
        read(pool, *range(5))
    writing = pool.write_items(keys(7))
    assert writing.tolist() == [5]
    assert (pool.item_generations(rows) == before).tolist() == [True, True, False]
    pool.commit_items(writing)
    assert (pool.item_generations(rows) == before).tolist() == [True, True, False]


def test_generations_of_another_pool_are_others(pool, tmp_path, clock):
    Pool.create(tmp_path / "other", 0, 6, 64)
    other = Pool(tmp_path / "other", clock.read)
    fill(pool, 1)
    fill(other, 1)
    assert pool.find_items(keys(1))[1] != other.find_items(keys(1))[1]


def test_an_index_that_points_to_another_row_is_not_believed(pool):
    fill(pool, *range(6))
    places = pool._map.table.item_index
    taken = np.flatnonzero(places[:, 2])
    answers = places[taken, 2].copy()
    for wrong in (answers[::-1], answers + 1, answers + 10**6):
        places[taken, 2] = wrong
        assert all(value in (-1, item) for item, value in enumerate(read(pool, *range(6))))
    assert len(fill(pool, *range(6))) == 6 and read(pool, *range(6)) == list(range(6))


def test_a_key_of_another_length_is_refused(pool):
    with pytest.raises(InputError, match="16 bytes each"):
        pool.item_rows([b"short"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("wrawr"), st.lists(st.integers(0, 14), max_size=8)), max_size=30))
def test_any_order_of_moves(tmp_path_factory, moves):
    """Rows are distinct, within the limit, and hold what their key says."""
    folder = tmp_path_factory.mktemp("pool") / "pool"
    Pool.create(folder, 0, 6, 64)
    pool = Pool(folder)
    for move, items in moves:
        if move == "w":
            fill(pool, *items)
        elif move == "a":
            pool.abandon_items(pool.write_items(keys(*items)))
        else:
            assert all(value in (-1, item) for item, value in zip(items, read(pool, *items), strict=True))
        table = pool._map.table
        held = table.row_key[table.row_state != FREE]
        assert len(np.unique(held, axis=0)) == len(held)
        found = pool.item_rows(keys(*range(15)))
        assert len(np.unique(found[found >= 0])) == (found >= 0).sum() == pool.usage()["items"] == len(held)


def test_a_large_pool_keeps_all_that_fits_and_loses_little_to_a_sample(tmp_path):
    """More rows than are all looked at."""
    Pool.create(tmp_path / "pool", 0, 70_000, 64)
    pool = Pool(tmp_path / "pool")
    all_keys = np.random.default_rng(0).integers(0, 2**63, (70_100, 2)).astype(np.uint64)
    pool.commit_items(pool.write_items(all_keys[:70_000]))
    assert (pool.item_rows(all_keys[:70_000]) >= 0).all()
    pool.item_rows(all_keys[:60_000])
    pool.commit_items(pool.write_items(all_keys[70_000:]))
    assert (pool.item_rows(all_keys[70_000:]) >= 0).all()
    assert (pool.item_rows(all_keys[:60_000]) >= 0).all(), "a hot row left"


def heats_of(pool):
    """Item -> heat, of the rows that are READY."""
    table = pool._map.table
    names = {key: item for item, key in enumerate(keys(*range(40)))}
    return {
        names[table.row_key[row].tobytes()]: float(table.row_heat[row])
        for row in np.flatnonzero(table.row_state != FREE)
    }


def ahead(pool, wanted):
    """Those of item -> heat, which nobody waits for, that found a place."""
    items = list(wanted)
    rows = pool.write_items(keys(*items), np.array([wanted[item] for item in items], float))
    pool.commit_items(rows)
    return {item for item, row in zip(items, rows.tolist(), strict=True) if row >= 0}


@settings(max_examples=80, deadline=None)
@given(
    there=st.dictionaries(st.integers(0, 19), st.integers(0, 9), max_size=6),
    wanted=st.dictionaries(st.integers(0, 29), st.floats(0, 12), max_size=9),
)
def test_what_nobody_waits_for_takes_free_rows_and_those_that_are_clearly_colder(
    tmp_path_factory, there, wanted
):
    """Beside one item after the other: the hottest that is absent for the coldest that is there."""
    folder = tmp_path_factory.mktemp("pool") / "pool"
    Pool.create(folder, 0, 6, 64)
    pool = Pool(folder, lambda: 1)
    ahead(pool, dict.fromkeys(there, 0.0))
    for item, heat in there.items():
        for _ in range(heat):
            pool.item_rows(keys(item))
    left, expected = dict(there), set()
    for item in sorted((each for each in wanted if each not in there), key=lambda each: -wanted[each]):
        old = {each: heat for each, heat in left.items() if each not in expected}
        if len(left) == 6:
            if not old or wanted[item] <= 1.5 * min(old.values()) + 0.5:
                break
            del left[min(old, key=old.__getitem__)]
        left[item] = wanted[item]
        expected.add(item)
    assert ahead(pool, wanted) == expected
    assert sorted(heats_of(pool).values()) == pytest.approx(sorted(left.values()))
    assert ahead(pool, wanted) <= wanted.keys() - expected, "what has come did not stay"


def test_two_items_as_hot_as_each_other_do_not_take_turns(pool):
    fill(pool, *range(6))
    for asked in range(50):
        read(pool, *range(6))
        assert not ahead(pool, {7: asked + 1.0}) and not ahead(pool, {8: asked + 2.0})
    assert ahead(pool, {9: 100.0}) == {9}


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from((FREE, FILLING, READY, READY)), st.integers(0, 3), st.integers(0, 4)),
        max_size=12,
    ),
    count=st.integers(0, 14),
    spared=st.lists(st.integers(-1, 12), max_size=4),
)
def test_rows_that_may_leave_are_those_of_sorting_all(rows, count, spared):
    """Free ones, then the coldest by what is left of their heat; of several as cold the first."""
    state, heat, age = (np.array([row[n] for row in rows]) for n in range(3))
    seen = ((4 - age) * HALF_LIFE_S * 1e9).astype(np.int64)
    ready = [n for n, row in enumerate(rows) if row[0] == READY and n not in spared]
    free = [n for n, row in enumerate(rows) if row[0] == FREE]
    want = [*free, *sorted(ready, key=lambda n: (rows[n][1] * 0.5 ** rows[n][2], n))][:count]
    chosen, cold = coldest(
        state.astype(np.int8), heat.astype(np.float32), seen, count, int(4 * HALF_LIFE_S * 1e9),
        np.array(spared, np.int32),
    )  # fmt: skip
    assert chosen.tolist() == want
    expected = [-np.inf if n in free else rows[n][1] * 0.5 ** rows[n][2] for n in want]
    np.testing.assert_allclose(cold, expected, rtol=1e-6)
