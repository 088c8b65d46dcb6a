"""The requests of a trace with their tokens: random ones of the lengths that a data set's shape, or its users, have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.items import Catalogue
from genrec.engine.ranking import RankRequest
from genrec.models.config import ModelConfig
from perf.rank.simulate import DataShape, trace
from training.data.histories import Histories

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """A shape, and where they are known its users' `lengths` int64[users] in tokens and its items' popularity."""

    shape: DataShape
    lengths: Counts | None = None
    popularity: NDArray[np.float64] | None = None  # float64[items]

    def with_items_of(self, tokens: int) -> Asked:
        """The same, an item having so many tokens."""
        return replace(self, shape=replace(self.shape, item_tokens=tokens))


def own_users(artifact: Path, shape: DataShape) -> Asked:
    """As many users of an artifact as `shape` has, or all, and all its items, whose tokens are their codes.

    They come as often as the users of `shape` do, who stand for more people than there are.
    """
    catalogue = Catalogue.load(artifact / "catalogue.parquet", titles=False)
    tokens = Histories.load(artifact / "histories.parquet").lengths * catalogue.levels
    drawn = np.random.default_rng(0).permutation(tokens)[: shape.users]
    own = replace(
        shape, users=len(drawn), items=len(catalogue), item_tokens=catalogue.levels, user_tokens=int(drawn.mean()),
        longest=int(tokens.max()) + shape.candidates * catalogue.levels,
    )  # fmt: skip
    return Asked(own, drawn, catalogue.popularity.astype(np.float64) + 1)


def requests_of(
    of: Asked, model: ModelConfig, count: int, seed: int
) -> tuple[NDArray[np.int32], list[tuple[RankRequest, int]]]:
    """Tokens of all items [n, t], and the trace's rankings with their times.

    A user has random tokens of his own. Candidates are drawn by the items' popularity, else by Zipf's law.
    """
    shape = of.shape
    found = trace(shape, count, seed, of.lengths)
    draw, levels = np.random.default_rng(seed), model.levels
    weight = (np.arange(shape.items) + 10.0) ** -1.0 if of.popularity is None else of.popularity
    popular = np.cumsum(weight) / weight.sum()
    items = draw.integers(0, model.vocab_size, (shape.items, shape.item_tokens)).astype(np.int32)
    codes = draw.integers(0, model.vocab_size, (shape.items, levels)).astype(np.int32)
    asks = []
    for user, when, tokens in zip(found.user[:count], found.when[:count], found.tokens[:count], strict=True):
        length = max(int(tokens) // levels * levels, levels)
        own = np.random.default_rng([seed, int(user)]).integers(0, model.vocab_size, length).astype(np.int32)
        rows = np.unique(
            np.searchsorted(popular, draw.random(4 * shape.candidates)).clip(max=shape.items - 1)
        )
        rows = draw.permutation(rows)[: shape.candidates]
        asks.append((RankRequest(int(user), own, items[rows], codes[rows]), int(when)))
    return items, asks
