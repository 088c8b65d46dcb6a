"""HSTU attention one pair of tokens at a time, in float64: the formula, read aloud."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from genrec.nn.hstu_layout import Layout


def bucket(seconds: int, buckets: int) -> int:
    """Two per octave: 1, 1.5, 2, 3, 4, 6, 8, ...; what is below 1 is 1."""
    size = max(1, abs(seconds))
    octave = math.floor(math.log2(size))
    return min(2 * octave + (size >= 1.5 * 2**octave), buckets - 1)


def slow_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: Tensor, time_bias: Tensor, n: float
) -> Tensor:
    """[T, H, D] of q, k, v [T, H, D]; torch differentiates it."""
    _, reach, position, time = (each.tolist() for each in layout)
    rows = []
    for start, stop in zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True):
        for i in range(start, stop):
            row = torch.zeros_like(v[0])
            for j in range(start, stop):
                if j - start < reach[i] or j == i:
                    near = min(max(position[i] - position[j], 0), position_bias.shape[1] - 1)
                    bias = (
                        position_bias[:, near] + time_bias[:, bucket(time[i] - time[j], time_bias.shape[1])]
                    )
                    score = (q[i] * k[j]).sum(-1) + bias
                    row = row + (score * torch.sigmoid(score) / n)[:, None] * v[j]
            rows.append(row)
    return torch.stack(rows) if rows else v
