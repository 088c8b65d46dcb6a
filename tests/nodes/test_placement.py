"""Hot items everywhere, cold ones dealt out: Algorithm 1 against a scan written as the paper writes it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.nodes.placement import (
    EVERYWHERE,
    Cluster,
    items_on,
    owners_of,
    place,
    replicated,
    sharded_share,
)

CLUSTER = Cluster(nodes=4, tokens_a_second=40_000, prefill_s=0.03, candidates=100, item_tokens=10)


def algorithm_1(frequencies, limit):
    """Lines 8 to 16: how many of the hottest are copied; none where nothing needs to be covered."""
    total, covered = sum(frequencies), Fraction(0)
    for i, frequency in enumerate([0, *sorted(frequencies, reverse=True)]):
        covered += Fraction(frequency, total)
        if covered >= 1 - Fraction(limit):
            return i
    raise AssertionError


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any),
    st.integers(1, 5),
    st.integers(0, 64).map(lambda n: n / 64),
)
def test_equals_the_scan(frequencies, nodes, limit):
    placed = place(frequencies, nodes, limit)
    copied = np.flatnonzero(placed == EVERYWHERE)
    rest = np.flatnonzero(placed != EVERYWHERE)
    assert len(copied) == algorithm_1(frequencies, limit)
    coldest_copied = min((frequencies[i] for i in copied), default=np.inf)
    assert all(frequencies[i] <= coldest_copied for i in rest)
    shares = np.bincount(placed[rest], minlength=nodes)
    assert shares.max(initial=0) - shares.min(initial=len(rest)) <= 1
    for node in range(nodes):
        assert set(items_on(placed, node)) == set(copied) | set(np.flatnonzero(placed == node))


@pytest.mark.parametrize("as_printed", [False, True])
@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_the_network_takes_the_tolerated_time_and_no_more(nodes, as_printed):
    """What goes over the network, by its definition: of the accesses to sharded items, those of other nodes."""
    cluster = Cluster(nodes, 40_000, 0.03, 100, 10)
    share = sharded_share(cluster, as_printed)
    seconds = share * (nodes - 1) / nodes * 100 * 10 / 40_000
    slack = ((nodes - 1) / nodes) ** 2 if as_printed else 1
    assert seconds == pytest.approx(0.1 * 0.03 * slack)


@pytest.mark.parametrize("fetch_s", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("tokens_a_second", [4_000, 4_000_000])
def test_what_a_fetch_takes_by_itself_counts_once_a_ranking_that_misses_any(fetch_s, tokens_a_second):
    cluster = Cluster(4, tokens_a_second, 0.03, 100, 10, fetch_s=fetch_s)
    share = sharded_share(cluster)
    missed = np.random.default_rng(0).random((100_000, 100)) < share
    seconds = fetch_s * missed.any(1).mean() + missed.sum(1).mean() * 3 / 4 * 10 / tokens_a_second
    assert share == 1 or seconds == pytest.approx(0.1 * 0.03, rel=0.05)
    assert share < sharded_share(Cluster(4, tokens_a_second, 0.03, 100, 10)) or share == 1


def test_limits():
    assert sharded_share(Cluster(1, 0.0, 1.0, 100, 10)) == 1 == sharded_share(Cluster(4, 1e12, 1.0, 100, 10))
    assert sharded_share(Cluster(4, 0.0, 1.0, 100, 10)) == 0
    assert (place([3, 1, 2], 2, 0.0) == EVERYWHERE).all() and place([3, 1, 2], 2, 1.0).tolist() == [0, 0, 1]
    assert place([], 2, 0.5).shape == (0,) and replicated(place([], 2, 0.5)) == 0
    assert replicated(place([8, 1, 1], 2, 0.2)) == pytest.approx(1 / 3)
    for bad in (
        {"nodes": 0},
        {"prefill_s": float("nan")},
        {"tokens_a_second": float("inf")},
        {"tolerance": -1.0},
    ):
        with pytest.raises(InputError, match=next(iter(bad))):
            Cluster(**{**vars(CLUSTER), **bad})
    for frequencies in ([[1.0]], [float("nan")], [-1.0]):
        with pytest.raises(InputError, match="frequencies"):
            place(frequencies, 2, 0.5)


def test_with_owners_what_is_cold_lies_where_its_key_says_and_a_change_of_hotness_moves_nothing_else():
    draw = np.random.default_rng(0)
    owners = owners_of(draw.integers(0, 2**63, (1000, 2)).astype(np.uint64), 4)
    assert np.bincount(owners).min() > 200
    counts = draw.zipf(1.5, 1000).astype(float)
    before, after = place(counts, 4, 0.1, owners), place(counts + draw.random(1000), 4, 0.1, owners)
    for placed in (before, after):
        cold = placed != EVERYWHERE
        assert (placed[cold] == owners[cold]).all() and 0 < cold.sum() < 1000
    np.testing.assert_array_equal(before == EVERYWHERE, place(counts, 4, 0.1) == EVERYWHERE)
    changed = (before == EVERYWHERE) != (after == EVERYWHERE)
    for node in range(4):
        assert set(items_on(before, node)) ^ set(items_on(after, node)) <= set(np.flatnonzero(changed))


def test_a_burst_is_everywhere_and_new_items_are_somewhere():
    before, after = place([9, 5, 1, 1], 2, 0.2), place([9, 1, 1, 9, 4], 2, 0.2)
    assert before.tolist() == [-1, -1, 0, 1] and after.tolist() == [-1, 0, 1, -1, -1]
