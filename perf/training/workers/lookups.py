"""The look-ups of a training step as histories make them: few ids often, lengths far apart. NumPy alone.

Workers in environments of their own import it from this folder.
"""

from __future__ import annotations

import numpy as np

FEATURES = ("item", "category", "shop", "user")
EXPONENT = 1.05  # of Zipf's law
MEAN_LENGTH, LONGEST = 100, 1000  # of a history, before the longest are cut


def sizes(vocabulary: int) -> dict[str, int]:
    """Ids per feature: of items all, of the others a tenth."""
    return {name: vocabulary if name == "item" else vocabulary // 10 for name in FEATURES}


def lengths(
    draw: np.random.Generator, count: int, mean: float = MEAN_LENGTH, longest: int = LONGEST
) -> np.ndarray:
    """Log-normal with sigma 1: int64[count], 1 to `longest`."""
    return np.clip(draw.lognormal(np.log(mean) - 0.5, 1.0, count), 1, longest).astype(np.int64)


def batches(
    vocabulary: int, sequences: int, steps: int, seed: int
) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Per step and feature (ids int64[total], lengths int64[sequences]); a sequence has one user."""
    draw, made = np.random.default_rng(seed), []
    popularity = np.cumsum(1 / np.arange(1, vocabulary + 1) ** EXPONENT)
    popularity /= popularity[-1]
    for _ in range(steps):
        long, batch = lengths(draw, sequences), {}
        for name, size in sizes(vocabulary).items():
            per = np.ones_like(long) if name == "user" else long
            ids = np.searchsorted(popularity, draw.random(per.sum()))
            batch[name] = (np.minimum(ids, vocabulary - 1) % size, per)
        made.append(batch)
    return made
