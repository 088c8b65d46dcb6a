"""Attention of a decode step the obvious way, in float64: what every other form of it is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def xattention(
    q: ArrayLike,
    shared_k: ArrayLike,
    shared_v: ArrayLike,
    unshared_k: ArrayLike,
    unshared_v: ArrayLike,
    prompt_length: ArrayLike,
) -> NDArray[np.float64]:
    """q [B, W, H, D], shared k, v [B, G, S, D], unshared k, v [B, W, U, G, D], prompt_length [B] -> [B, W, H, D].

    Beam by beam and head by head: a beam's keys are the prompt's real ones and then its own, one softmax over
    all of them (the definition that xGR section 5.2 computes in stages).
    """
    queries, far_k, far_v, own_k, own_v = (
        np.asarray(x, np.float64) for x in (q, shared_k, shared_v, unshared_k, unshared_v)
    )
    _, beams, heads, size = queries.shape
    group = heads // far_k.shape[1]
    out = np.empty_like(queries)
    for b, length in enumerate(np.asarray(prompt_length)):
        for w in range(beams):
            for h in range(heads):
                keys = np.concatenate((far_k[b, h // group, :length], own_k[b, w, :, h // group]))
                values = np.concatenate((far_v[b, h // group, :length], own_v[b, w, :, h // group]))
                score = keys @ queries[b, w, h] / np.sqrt(size)
                weight = np.exp(score - score.max())
                out[b, w, h] = weight @ values / weight.sum()
    return out
