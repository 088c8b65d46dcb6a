"""What a ranker of ratings must beat is what a slow twin says, and reads ratings in parts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tests.training.hstu.test_hstu import some_ratings
from training.hstu import baselines
from training.hstu.baselines import PRIOR, biased_factors, item_rates
from training.hstu.ratings import Ratings

EVENTS, OF_A_USER = 1 << 20, 1 << 10


def many_ratings() -> Ratings:
    draw = np.random.default_rng(0)
    offsets = np.arange(0, EVENTS + 1, OF_A_USER)
    items, ratings = draw.integers(0, 50, EVENTS), draw.integers(1, 6, EVENTS)
    features = np.zeros((len(offsets) - 1, 0), np.int64)
    return Ratings(offsets, items, ratings, np.zeros(EVENTS, np.int64), features, 0)


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_rates_are_those_of_an_item_s_earlier_events(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "BLOCK_ITEMS", block)
    ratings = some_ratings()
    held, found = ratings.held_out, item_rates(ratings)
    known = [(ratings.items[e], ratings.labels(np.array([e]))[0]) for e in np.flatnonzero(~held)]
    whole = np.mean([labels for _, labels in known], 0)
    for item, rate in zip(ratings.items[held][:40], found, strict=False):
        of_item = np.array([labels for each, labels in known if each == item])
        np.testing.assert_allclose(rate, (of_item.sum(0) + PRIOR * whole) / (len(of_item) + PRIOR))
    assert found.shape == (held.sum(), 2)


@pytest.mark.parametrize("baseline", [item_rates, biased_factors])
def test_ratings_are_read_in_parts(
    baseline: Callable[[Ratings], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them are held out is a byte of each; nothing else is as long as they are."""
    monkeypatch.setattr(baselines, "BLOCK_ITEMS", 1 << 14)
    monkeypatch.setattr(baselines, "EPOCHS", 1)
    ratings = many_ratings()
    baseline(some_ratings())  # what torch imports then is no part of it
    tracemalloc.start()
    baseline(ratings)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * EVENTS
