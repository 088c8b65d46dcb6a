"""What a batch takes, learnt from batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.batch_cost import MEMORY, MOST, SPREAD, BatchCost


def test_nothing_is_known_before_a_batch_ran():
    cost = BatchCost()
    assert not cost.known and cost.seconds(3, 400) == 0.0
    cost.learn(100, 0.5)
    assert cost.known


def test_batches_of_one_size_cost_by_their_tokens():
    cost = BatchCost()
    for _ in range(9):
        cost.learn(200, 0.02)
    assert cost.seconds(1, 200) == pytest.approx(0.02)
    assert cost.seconds(4, 600) == pytest.approx(0.06)


def test_small_batches_after_large_ones_do_not_make_large_ones_dearer():
    cost = BatchCost()
    for tokens in [2000, 400, 1600, 400, 2000, *[400, 500] * 50]:
        cost.learn(tokens, 0.006 + tokens * 6e-6)
    assert cost.seconds(1, 2000) == pytest.approx(0.018, rel=0.15)
    by_tokens_alone = 2000 * (0.006 + 450 * 6e-6) / 450
    assert by_tokens_alone > 2 * cost.seconds(1, 2000)


def test_how_many_tokens_take_so_long():
    cost = BatchCost()
    assert cost.tokens(1.0) == 0, "nothing ran"
    for tokens in [300, 600] * 40:
        cost.learn(tokens, 0.004 + tokens * 1e-5)
    most = cost.tokens(0.025)
    assert cost.seconds(1, most) <= 0.025 < cost.seconds(1, most + 2)
    assert cost.tokens(0.001) == 0, "a batch takes longer than that"


def test_where_larger_batches_took_no_longer_they_may_grow():
    cost = BatchCost()
    for tokens, seconds in [(30, 0.02), (60, 0.01)] * 9:
        cost.learn(tokens, seconds)
    assert cost.tokens(1.0) == MOST
    assert cost.tokens(0.001) == 0, "a batch takes longer than that"


def test_what_is_forgiven_is_expected_to_take_half_as_long():
    cost = BatchCost()
    for tokens in [300, 600] * 40:
        cost.learn(tokens, 0.004 + tokens * 1e-5)
    before = [cost.seconds(1, tokens) for tokens in (1, 300, 2000)]
    cost.forgive()
    assert [cost.seconds(1, tokens) for tokens in (1, 300, 2000)] == [pytest.approx(s / 2) for s in before]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(1e-4, 1.0)), min_size=1, max_size=40))
def test_it_is_the_least_squares_of_what_is_remembered(batches):
    """The twin: a ridge on the slope, towards the line through zero, over all batches with their weights."""
    cost = BatchCost()
    for tokens, seconds in batches:
        cost.learn(tokens, seconds)
    sizes, took = np.array(batches, np.float64).T
    weights = MEMORY ** np.arange(len(batches))[::-1]
    size, mean = np.average(sizes, weights=weights), np.average(took, weights=weights)
    slopes = np.linspace(0, mean / size, 20_001)
    wrong = (
        np.average((took - mean - slopes[:, None] * (sizes - size)) ** 2, axis=1, weights=weights)
        + (SPREAD * size * (slopes - mean / size)) ** 2
    )
    best = slopes[wrong.argmin()]
    expected = 2 * (mean - size * best) + 500 * best
    step = abs(500 - 2 * size) * slopes[1]
    assert cost.seconds(2, 500) == pytest.approx(expected, abs=step + 1e-9)
