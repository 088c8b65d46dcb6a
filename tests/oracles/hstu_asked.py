"""One ranking by the torch module as it is trained: a user's events and candidates as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from genrec.nn.hstu import HstuRanker
from training.hstu_batches import Sample, tokens_of
from training.ratings import Ratings


class Asked(NamedTuple):
    """`rows` of the catalogue with ratings and times, oldest first, when it is asked, and numbers of features."""

    rows: Sequence[int]
    ratings: Sequence[int]
    times: Sequence[int]
    now: int
    features: Sequence[int]


@torch.no_grad()
def logits_of(model: HstuRanker, asked: Asked, candidates: Sequence[int]) -> np.ndarray:
    """float32[C, tasks] of candidates, rows of the catalogue."""
    events, many = len(asked.rows), len(candidates)
    ratings = Ratings(
        np.array([0, events + many]),
        np.array([*asked.rows, *candidates]),
        np.array([*asked.ratings, *[5] * many]),
        np.array([*asked.times, *[asked.now] * many]),
        np.array([asked.features], np.int64).reshape(1, -1),
        model.config.features,
    )
    place = events + np.arange(many)
    sample = Sample(0, 0, events, place, np.full(many, events), place)
    return model(tokens_of(ratings, [sample])).numpy()
