"""What the ONNX files of a ranker hold: see `genrec.nn.ranker`. Where a batch is written as 1, it is of one request.

A first entry of a user, and items' entries, come from `rank_prefill.onnx`; `extend.onnx` makes a user's entry longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from genrec.nn.attention import behind, behind_items
from genrec.nn.ranker import KV, Ranker


def _pairs(tensors: Sequence[Tensor]) -> KV:
    """k, v of layer 0, k, v of layer 1, ... as pairs."""
    return list(zip(tensors[0::2], tensors[1::2], strict=True))


class RankPrefillGraph(nn.Module):
    """Tokens without a past to KV: of one user, or of several items at once."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """tokens [B, S] -> per layer k, v [B, G, S, D]."""
        return tuple(each for pair in self.ranker.prefix(tokens) for each in pair)


class ExtendGraph(nn.Module):
    """A user's newest tokens to KV, behind the entry of those before."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, tokens: Tensor, past_length: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        """tokens [1, Q], past_length [1]; per layer k, v [1, G, P, D], so far -> per layer new k, v [1, G, Q, D]."""
        length = past_length.to(torch.int64)
        found = self.ranker.prefix(tokens, length, behind(_pairs(past), length))
        return tuple(each for pair in found for each in pair)


class SplitGraph(nn.Module):
    """Order `split`: both entries are there."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, items: Tensor, rows: Tensor, prompt_length: Tensor, shared: list[Tensor]) -> Tensor:
        """items [M, 2N, G, t, D], rows [B, C]; of users per layer k, v [B, G, S, D] -> states [B, C, hidden]."""
        length = prompt_length.to(torch.int64)
        return self.ranker.states(_pairs(shared), length, items, rows, "split")


class UserFirstGraph(nn.Module):
    """Order `user`: the user's entry is there, the candidates are computed behind it."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, candidates: Tensor, prompt_length: Tensor, shared: list[Tensor]) -> Tensor:
        """candidates [1, C, t]; of the user per layer k, v [1, G, S, D] -> states [1, C, hidden]."""
        user, length = _pairs(shared), prompt_length.to(torch.int64)
        entries = self.ranker.candidates(candidates, user, length)
        rows = torch.arange(candidates.shape[1]).unsqueeze(0)
        return self.ranker.states(user, length, entries, rows, "user")


class ItemFirstGraph(nn.Module):
    """Order `item`: the items' entries are there, the user is computed behind them."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, tokens: Tensor, items: Tensor, rows: Tensor) -> Tensor:
        """tokens [1, S] of the user, items [M, 2N, G, t, D], rows [1, C] -> states [1, C, hidden]."""
        user = self.ranker.prefix(tokens, items.shape[3], behind_items(items, rows))
        length = torch.full((1,), tokens.shape[1])
        return self.ranker.states(user, length, items, rows, "item")
