"""One ranking by the torch module as it is trained: a user's events and candidates as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import window_start
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.report import RankReport
from training.hstu.batches import Sample, tokens_of
from training.hstu.ratings import Ratings


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


class ByTorch:
    """What an artifact's HSTU ranker answers to requests, everything computed."""

    def __init__(self, artifact: Path) -> None:
        self.model = load_hstu(artifact / "model")
        self.catalogue = Catalogue.load(artifact / "catalogue.parquet")

    def __call__(
        self, history: Sequence[int], candidates: Sequence[int], **events: np.ndarray
    ) -> dict[int, float]:
        """Item -> score of every candidate; `events` as tensors of a request."""
        count = len(history)
        nothing = np.zeros((1, count), np.int64)
        ratings, times = (events.get(name, nothing)[0] for name in ("ratings", "times"))
        now = int(events["now"][0, 0]) if "now" in events else int(times[-1]) if count else 0
        features = events.get("features", nothing[:, :0])[0]
        start = window_start(count, self.model.config.max_history)
        rows = self.catalogue.rows_of(history)[start:]
        asked = Asked(rows, ratings[start:], times[start:], now, features)
        found = logits_of(self.model, asked, self.catalogue.rows_of(candidates))[:, 0]
        return dict(zip(candidates, found.tolist(), strict=True))


def events_of(draw: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Ratings, times, now and features as tensors, of `count` events."""
    times = 10**9 + np.sort(draw.integers(0, 10**8, count))
    return {
        "ratings": draw.integers(1, 6, (1, count)).astype(np.int32),
        "times": times[None],
        "now": np.array([[10**9 + 10**8 + 5]]),
        "features": np.array([[2, 5, 7]], np.int32),
    }


def check_ranking(answer: Any, want: dict[int, float], top_k: int) -> RankReport:
    """The best of `want`, best first, each once."""
    assert isinstance(answer, dict), answer
    ids, scores = answer["item_ids"][0].tolist(), answer["scores"][0]
    assert len(ids) == len(set(ids)) == min(top_k, len(want))
    np.testing.assert_allclose(scores, [want[item] for item in ids], atol=1e-4)
    assert (np.diff(scores) <= 0).all()
    assert min(scores) >= sorted(want.values())[-len(ids)] - 1e-4, "none better was left out"
    return RankReport(*(int(x) for x in answer["report"][0]))
