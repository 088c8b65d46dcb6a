"""GAUC: the area under the ROC curve within each user (MTGRBoost, section 6.1), weighted by his impressions."""

from __future__ import annotations

import numpy as np


def gauc(users: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> tuple[float, int]:
    """GAUC of users int[n], labels bool[n], scores float[n], and over how many users: those with both labels.

    Equal scores count half. NaN where no user has both.
    """
    if not len(users):
        return float("nan"), 0
    order = np.lexsort((scores, users))
    users, labels, scores = users[order], labels[order].astype(bool), scores[order]
    starts = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
    counts = np.diff(np.append(starts, len(users)))
    place = np.arange(1, len(users) + 1) - np.repeat(starts, counts)
    ties = np.cumsum(np.append(True, (users[1:] != users[:-1]) | (scores[1:] != scores[:-1]))) - 1
    rank = (np.bincount(ties, place) / np.bincount(ties))[ties]  # the mean place of equal ones
    clicked = np.add.reduceat(labels.astype(np.float64), starts)
    passed = counts - clicked
    both = (clicked > 0) & (passed > 0)
    above = np.add.reduceat(np.where(labels, rank, 0), starts) - clicked * (clicked + 1) / 2
    if not both.any():
        return float("nan"), 0
    areas = above[both] / (clicked[both] * passed[both])
    return float(np.average(areas, weights=counts[both])), int(both.sum())
