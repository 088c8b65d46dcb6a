"""HSTU attention in torch's own words, padded and batched: where there is no compiler, and on GPUs.

`genrec/nn/hstu_attention.py` says what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genrec.nn.hstu_layout import Layout, time_bucket

BLOCK = 256  # queries


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: Tensor, time_bias: Tensor, n: float
) -> Tensor:
    """The formula as it is written: scores [B, H, N, N] in memory. Shapes as `hstu_attention`."""
    q, k, v, *marks = (_padded(each, layout) for each in (q, k, v, *layout[1:]))
    return _ragged(_rows_from(0, q, k, v, marks, position_bias, time_bias, n), layout)


def attention_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: Tensor, time_bias: Tensor, n: float
) -> Tensor:
    """The same for BLOCK queries at a time, computed again on the way back: scores [B, H, BLOCK, N] at most."""
    rows = _compiled() if q.is_cuda else _rows_from
    q, k, v, *marks = (_padded(each, layout) for each in (q, k, v, *layout[1:]))
    parts = [
        checkpoint(rows, start, q[:, start : start + BLOCK], k, v, marks, position_bias, time_bias, n,
                   use_reentrant=False)
        for start in range(0, q.shape[1], BLOCK)
    ]  # fmt: skip
    return _ragged(torch.cat(parts, 1) if parts else q, layout)


@cache
def _compiled() -> Callable[..., Tensor]:
    """Bias, silu and mask in one kernel."""
    return torch.compile(_rows_from, dynamic=True)


def _rows_from(
    start: int, q: Tensor, k: Tensor, v: Tensor, marks: list[Tensor], position_bias: Tensor,
    time_bias: Tensor, n: float,
) -> Tensor:  # fmt: skip
    """Outputs [B, M, H, D] of queries [B, M, H, D], which are those from `start` on, of k, v [B, N, H, D].

    `marks` are reach, position and time [B, N].
    """
    reach, position, time = marks
    rows = torch.arange(start, start + q.shape[1], device=q.device)
    keys = torch.arange(k.shape[1], device=q.device)
    seen = (keys < reach[:, rows, None]) | (keys == rows[:, None])  # padded keys are beyond every reach
    near = (position[:, rows, None] - position[:, None]).clamp(0, position_bias.shape[1] - 1).long()
    since = time_bucket(time[:, rows, None] - time[:, None], time_bias.shape[1])
    bias = (position_bias[:, near] + time_bias[:, since]).transpose(0, 1)  # [B, H, M, N]
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k) + bias
    return torch.einsum("bhmn,bnhd->bmhd", F.silu(scores) / n * seen.unsqueeze(1), v)


def _padded(ragged: Tensor, layout: Layout) -> Tensor:
    """[T, ...] -> [B, N, ...], zeros behind the shorter ones."""
    width = int(layout.lengths.max()) if len(layout.lengths) else 0
    out = ragged.new_zeros(len(layout.lengths), width, *ragged.shape[1:])
    return out.index_put(_places(layout), ragged)


def _ragged(padded: Tensor, layout: Layout) -> Tensor:
    """[B, N, ...] -> [T, ...]."""
    return padded[_places(layout)]


def _places(layout: Layout) -> tuple[Tensor, Tensor]:
    """Of every token its sequence and its place in it: int64[T] each."""
    lengths = layout.lengths
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    return sequence, torch.arange(len(sequence), device=lengths.device) - layout.offsets[sequence]
