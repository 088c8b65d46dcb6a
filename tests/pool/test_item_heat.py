"""How often items are asked for, against one number per item that is halved as time passes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.pool.coldest import HALF_LIFE_S
from genrec.pool.item_heat import REBASE, ItemHeat


def tokens(*items):
    """int32[n, 3], each item another row."""
    return np.array([(item, item // 7, item % 5) for item in items], np.int32).reshape(-1, 3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40 * HALF_LIFE_S), st.sets(st.integers(0, 40), max_size=9)), max_size=12)
)
def test_equals_a_number_per_item(asked):
    now = 1000.0
    heat, want = ItemHeat(lambda: now), np.zeros(41)
    for passed, items in asked:
        now += passed
        want *= 0.5 ** (passed / HALF_LIFE_S)
        heat.see(tokens(*items))
        want[list(items)] += 1
    np.testing.assert_allclose(heat.of(tokens(*range(41))), want, rtol=1e-6, atol=1e-9)
    assert heat.seen == sum(len(items) for _, items in asked)


def test_an_item_named_twice_by_one_request_counts_once_and_a_year_changes_nothing():
    now = 0.0
    heat = ItemHeat(lambda: now)
    heat.see(tokens(1, 1, 2))
    assert heat.of(tokens(1, 2, 3)).tolist() == [1, 1, 0]
    for _ in range(2000):
        now += (REBASE - 1) * HALF_LIFE_S
        heat.see(tokens(5))
    assert heat.of(tokens(5, 1)) == pytest.approx([1, 0], abs=1e-6)
    now += 2000 * HALF_LIFE_S
    assert heat.of(tokens(5))[0] < 1e-300
    heat.see(tokens(5))
    assert heat.of(tokens(5)).tolist() == [1]


def test_a_large_catalogue_finds_hot_items_hot():
    draw = np.random.default_rng(0)
    every = np.unique(draw.integers(0, 4096, (200_000, 3)), axis=0).astype(np.int32)
    heat = ItemHeat(lambda: 0.0)
    for _ in range(3):
        heat.see(every[:100])
    heat.see(every[100:50_000])
    found = heat.of(every)
    assert (found[:100] >= 3).all() and (found[:100] == 3).mean() > 0.9
    assert (found[100:50_000] >= 1).all() and (found[100:50_000] == 1).mean() > 0.9
    assert (found[50_000:] > 0).mean() < 0.02, "items that share both places with others"
