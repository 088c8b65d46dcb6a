"""An HSTU ranker: a user's features, events with their ratings, and candidates, in one ragged sequence (MTGR).

Layers are MTGRBoost's eq. 1 and 2 (section 2); norms are MTGR's group layer norm, of which features, events and
candidates each have weights of their own. Features see each other; an event also sees the events before it; a candidate
sees the features, the events that came before it, and itself. So its score depends on no other candidate, and on no
rating but those of events it sees. T tokens, C of them candidates, d the hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.nn.experts import Experts
from genrec.nn.hstu_attention import hstu_attention
from genrec.nn.hstu_layout import Layout
from genrec.rank.hstu import CONFIG, WEIGHTS, HstuConfig

FEATURE, EVENT, CANDIDATE = range(3)  # groups of tokens


class Tokens(NamedTuple):
    """A ragged batch: `layout`, and int64[T] each: `group`, and what is embedded, of which 0 is none.

    `item` (row of the catalogue + 1), `rating` (of events; never of candidates), `feature`.
    """

    layout: Layout
    group: Tensor
    item: Tensor
    rating: Tensor
    feature: Tensor

    def to(self, device: torch.device) -> Tokens:
        """The same on a device."""
        return Tokens(self.layout.to(device), *(each.to(device) for each in self[1:]))


class GroupLayerNorm(nn.Module):
    """Layer norm [T, d] whose weights are those of a token's group."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, size))
        self.bias = nn.Parameter(torch.zeros(3, size))

    def forward(self, x: Tensor, group: Tensor) -> Tensor:
        """[T, d] of x [T, d] and group int64[T]."""
        plain = F.layer_norm(x, x.shape[1:], eps=1e-6)
        return plain * self.weight[group] + self.bias[group]


class HstuLayer(nn.Module):
    """u, v, q, k by one projection, attention without softmax, gated by u (MTGRBoost, eq. 1 to 3).

    The norm is of what was attended to, before the gate, as Zhai et al. have it; equation 3 takes it behind the gate.
    """

    def __init__(self, config: HstuConfig, norm: Callable[[int], nn.Module] = GroupLayerNorm) -> None:
        """`norm` makes a norm of [T, d] and the tokens' groups."""
        super().__init__()
        size, self.heads, self.n = config.hidden_size, config.heads, float(config.max_history)
        self.norm, self.attended_norm = norm(size), norm(size)
        self.project, self.finish = nn.Linear(size, 4 * size), nn.Linear(size, size)
        self.position_bias = nn.Parameter(torch.zeros(config.heads, config.max_history + 2))
        self.time_bias = nn.Parameter(torch.zeros(config.heads, config.times))
        self.drop = nn.Dropout(config.dropout)
        self.attend = hstu_attention  # or a plain twin of it

    def forward(self, x: Tensor, layout: Layout, group: Tensor | None) -> Tensor:
        """[T, d] of x [T, d] and group int64[T]."""
        parts = F.silu(self.project(self.norm(x, group))).chunk(4, 1)
        q, k, v = (each.unflatten(1, (self.heads, -1)) for each in parts[1:])
        seen = self.attend(q, k, v, layout, self.position_bias, self.time_bias, self.n).flatten(1)
        return x + self.drop(self.finish(parts[0] * self.attended_norm(seen, group)))


class HstuRanker(nn.Module):
    """Tokens to a logit per candidate and task."""

    files = (CONFIG, WEIGHTS)

    def __init__(self, config: HstuConfig, codes: Tensor) -> None:
        """`codes` int[items, L]: an item's row of its own is added to those of its semantic ID's codes."""
        super().__init__()
        self.config, size = config, config.hidden_size
        starts = torch.from_numpy(config.code_starts)
        rows = torch.cat((torch.zeros_like(codes[:1]), codes + starts)).long()  # row 0 is no item
        self.register_buffer("codes", rows)
        self.of_item = _table(config.items + 1, size)
        self.of_code = _table(config.code_rows, size)
        self.of_rating = _table(config.ratings + 1, size)
        self.of_feature = _table(config.features + 1, size)
        self.layers = nn.ModuleList(HstuLayer(config) for _ in range(config.layers))
        self.norm = GroupLayerNorm(size)
        self.drop = nn.Dropout(config.dropout)
        self.head = _head(config)

    def embed(self, tokens: Tokens) -> Tensor:
        """[T, d]: the sum of what a token has."""
        codes = cast(Tensor, self.codes)[tokens.item]
        return self.embed_rows(tokens.item, codes, tokens.rating, tokens.feature)

    def embed_rows(self, item: Tensor, codes: Tensor, rating: Tensor, feature: Tensor) -> Tensor:
        """[T, d] of rows of the tables: [T] each, codes [T, L]."""
        return self.by_id(item, feature) + self.of_code(codes).sum(1) + self.of_rating(rating)

    def by_id(self, item: Tensor, feature: Tensor) -> Tensor:
        """[T, d] of int64[T] each: rows that a trainer has in tables of its own."""
        return cast(Tensor, self.of_item(item) + self.of_feature(feature))

    def forward(self, tokens: Tokens) -> Tensor:
        """Logits [C, tasks] of the candidates, in their order."""
        x = self.drop(self.embed(tokens))
        for layer in self.layers:
            x = layer(x, tokens.layout, tokens.group)
        asked = tokens.group == CANDIDATE
        return self.head(self.norm(x[asked], tokens.group[asked]))


def _head(config: HstuConfig) -> nn.Module:
    """[n, d] to logits [n, tasks]."""
    size, tasks = config.hidden_size, config.outputs
    if config.experts:
        return Experts(size, config.experts, tasks)
    return nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, tasks))


def _table(rows: int, size: int) -> nn.Embedding:
    """Embeddings of which row 0 stays zero."""
    table = nn.Embedding(rows, size, padding_idx=0)
    nn.init.normal_(table.weight[1:], std=0.02)
    return table
