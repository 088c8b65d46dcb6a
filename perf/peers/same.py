"""That "the same weights" is true: our scores recomputed from a peer's logits, and answers held against answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from perf.peers.folder import Model

Logits = Callable[[Sequence[int]], NDArray[np.float64]]  # tokens [S] -> float64[V] of the next token


def score(model: Model, prompt: Sequence[int], item: int, logits: Logits) -> float:
    """Log-probability of an item under the constrained model, by a peer's logits: the slow way, level by level."""
    tokens, total = list(prompt), 0.0
    siblings = model.tokens
    for level, token in enumerate(model.tokens[item].tolist()):
        valid = np.unique(siblings[:, level])
        found = logits(tokens)[valid]
        top = found.max()
        total += found[valid == token].item() - top - np.log(np.exp(found - top).sum())
        siblings = siblings[siblings[:, level] == token]
        tokens.append(token)
    return total
