"""A mock ranker that fits this machine: an inline ranking is slow enough for its budget to matter, and meets it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ensembles.local import LocalRecommender
from genrec.models.config import ModelConfig
from perf.rank.mock_ranker import ITEMS, mock_ranker

LEVELS = 3
LONGEST = 8193  # tokens of the longest history
CANDIDATES = 100
# Hidden size and layers, the smallest first.
LADDER = ((32, 1), (64, 2), (128, 2), (256, 2), (256, 4), (512, 4), (512, 8))
TRIES = 5

Items = NDArray[np.int64]


def shape_of(hidden: int, layers: int) -> ModelConfig:
    """A generator with heads of 32, a KV head for two of them, that reads LONGEST tokens."""
    return ModelConfig(
        (256,) * LEVELS, LONGEST // LEVELS, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=max(hidden // 32, 2), num_key_value_heads=max(hidden // 64, 1), head_dim=32,
        intermediate_size=3 * hidden,
    )  # fmt: skip


def fitting(folder: Path, tokens: int, budget_ms: float, reach: int = 0) -> tuple[int, int]:
    """Hidden size and layers of the largest mock ranker that ranks a history of `tokens` within `budget_ms` here.

    The smallest one where none does: then histories have to be shorter.
    """
    fits = LADDER[0]
    for size in LADDER:
        if alone_ms(made(folder, *size, reach=reach), tokens) > budget_ms:
            break
        fits = size
    return fits


def made(folder: Path, hidden: int, layers: int, shared: bool = True, reach: int = 0) -> Path:
    """The artifact of this size, written unless it is there; `shared`: its users' KV is the generator's; `reach`: how
    many of a user's newest tokens its discriminant tokens see.
    """
    artifact = folder / f"{hidden}-{layers}{'' if shared else '-own'}{f'-{reach}' if reach else ''}"
    mock_ranker(artifact, 1, shape_of(hidden, layers), "split", shared, reach)
    return artifact


def alone_ms(artifact: Path, tokens: int) -> float:
    """The shortest of a few rankings that compute the user's whole prefix, in this process."""
    history, candidates = draw(tokens, 0)
    with LocalRecommender(artifact, 1, decoder="rank", pool_user_mb=0) as local:
        taken = []
        for _ in range(TRIES):
            begun = time.perf_counter()
            local.rank([(history.tolist(), candidates.tolist())], 10)
            taken.append(1e3 * (time.perf_counter() - begun))
    return min(taken)


def draw(tokens: int, seed: int) -> tuple[Items, Items]:
    """A random history of `tokens` tokens, and CANDIDATES distinct items."""
    g = np.random.default_rng([seed, tokens])
    history = g.integers(0, ITEMS, max(tokens // LEVELS, 1))
    return history, g.permutation(ITEMS)[:CANDIDATES].astype(np.int64)
