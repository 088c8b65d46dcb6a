"""GAUC against counting pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from training.hstu.gauc import gauc


def pairs(users: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> float:
    """Of every user's pairs of a click and a pass, the share where the click is ahead; a tie is half."""
    total = weight = 0.0
    for user in set(users.tolist()):
        mine = users == user
        clicked, passed = scores[mine & labels], scores[mine & ~labels]
        if len(clicked) and len(passed):
            wins = [(a > b) + 0.5 * (a == b) for a in clicked for b in passed]
            total += mine.sum() * float(np.mean(wins))
            weight += mine.sum()
    return total / weight


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_counting_pairs_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, labels = rng.integers(0, 12, 150), rng.random(150) < 0.4
    scores = rng.integers(0, 6, 150).astype(float)  # many ties
    value, count = gauc(users, labels, scores)
    assert value == pytest.approx(pairs(users, labels, scores), abs=1e-12)
    both = [u for u in set(users.tolist()) if 0 < labels[users == u].sum() < (users == u).sum()]
    assert count == len(both)


def test_users_with_one_label_do_not_count() -> None:
    users, labels = np.array([1, 1, 2, 2, 3, 3]), np.array([1, 1, 0, 0, 0, 1], bool)
    assert gauc(users, labels, np.array([0, 1, 0, 1, 0, 1.0])) == (1.0, 1)
    value, count = gauc(users[:4], labels[:4], np.zeros(4))
    assert math.isnan(value) and count == 0


def test_of_no_events_it_is_none() -> None:
    value, users = gauc(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0))
    assert math.isnan(value) and users == 0
