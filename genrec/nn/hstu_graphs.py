"""What the ONNX files of HSTU rankers hold: a user's KV, and what is asked over it (MTGR; BAT's order `user`).

A user's tokens see no candidate, so their KV is the same for all. Without softmax, what a token takes from the tokens
before it and from those beside it is added up, and what is not seen adds 0. All work on one request. Q new tokens
behind P, S of the user, C candidates, L levels. `marks` are those of `genrec.rank.hstu_marks`. Rows of items are
catalogue rows + 1: row 0 is none.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.nn.hstu import CANDIDATE, EVENT, FEATURE, HstuLayer, HstuRanker
from genrec.nn.hstu_next import HstuNext, vectors


class HstuUserGraph(nn.Module):
    """A user's newest tokens to KV, behind that of those before."""

    def __init__(self, ranker: HstuRanker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(
        self, tokens: Tensor, marks: Tensor, past_marks: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """tokens [Q, 3 + L] of item, rating, feature and codes; marks [3, Q, Q], past_marks [3, Q, P].

        past: per layer k, v [1, H, P, D] -> per layer new k, v [1, H, Q, D].
        """
        item, rating, feature = tokens[:, 0], tokens[:, 1], tokens[:, 2]
        x = self.ranker.embed_rows(item, tokens[:, 3:], rating, feature)
        group = torch.where(feature > 0, FEATURE, EVENT)
        return _kv(self.ranker.layers, x, group, marks, past_marks, past)


class HstuRankGraph(nn.Module):
    """Candidates over a user's KV, to logits."""

    def __init__(self, ranker: HstuRanker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, candidates: Tensor, marks: Tensor, user: list[Tensor]) -> Tensor:
        """candidates [C, 1 + L] of item and codes; marks [3, S], of any candidate; user: per layer k, v [1, H, S, D].

        -> logits [C, tasks].
        """
        none = torch.zeros_like(candidates[:, 0])
        x, group = self.ranker.embed_rows(candidates[:, 0], candidates[:, 1:], none, none), none + CANDIDATE
        x = _behind(self.ranker.layers, x, group, marks, user)
        return self.ranker.head(self.ranker.norm(x, group))


class NextUserGraph(nn.Module):
    """A user's events to KV, behind that of those before; all but his newest, of a model of the next item."""

    def __init__(self, ranker: HstuNext) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(
        self, tokens: Tensor, marks: Tensor, past_marks: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """tokens [Q, 2 + L] of item, bucket of the wait, and codes; all else as of `HstuUserGraph`."""
        return _kv(self.ranker.layers, _told(self.ranker, tokens), None, marks, past_marks, past)


class NextRankGraph(nn.Module):
    """The newest event over the KV of those before it, to scores of candidates."""

    def __init__(self, ranker: HstuNext) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, newest: Tensor, candidates: Tensor, marks: Tensor, user: list[Tensor]) -> Tensor:
        """newest [1, 2 + L] as tokens of `NextUserGraph`; candidates [C, 1 + L] of item and codes; marks [3, S], of the
        newest; user: per layer k, v [1, H, S, D].

        -> scores [C, 1].
        """
        x = _behind(self.ranker.layers, _told(self.ranker, newest), None, marks, user)
        wanted = vectors(_rows(self.ranker, candidates[:, 0], candidates[:, 1:]))
        return wanted @ F.normalize(x, dim=1).T / self.ranker.config.temperature


def _rows(ranker: HstuNext, item: Tensor, codes: Tensor) -> Tensor:
    """[n, d] of rows of the tables: item [n], codes [n, L]."""
    return ranker.of_item(item) + ranker.of_code(codes).sum(1)


def _told(ranker: HstuNext, tokens: Tensor) -> Tensor:
    return ranker.told(_rows(ranker, tokens[:, 0], tokens[:, 2:]), tokens[:, 1])


def _kv(
    layers: nn.ModuleList, x: Tensor, group: Tensor | None, marks: Tensor, past_marks: Tensor,
    past: list[Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Per layer new k, v [1, H, Q, D], of tokens x [Q, d]."""
    found: list[Tensor] = []
    for number, each in enumerate(layers):
        layer, (k_past, v_past) = cast(HstuLayer, each), past[2 * number : 2 * number + 2]
        gate, q, k, v = _heads(layer, x, group)
        found += [k.unsqueeze(0), v.unsqueeze(0)]
        if number + 1 < len(layers):  # of the last, nobody reads more than keys and values
            seen = _taken(layer, q, k_past[0], v_past[0], past_marks) + _taken(layer, q, k, v, marks)
            x = _finished(layer, x, gate, seen, group)
    return tuple(found)


def _behind(
    layers: nn.ModuleList, x: Tensor, group: Tensor | None, marks: Tensor, user: list[Tensor]
) -> Tensor:
    """[n, d] behind all layers, of tokens x [n, d] of which each sees the user and itself."""
    for number, each in enumerate(layers):
        layer, (k_user, v_user) = cast(HstuLayer, each), user[2 * number : 2 * number + 2]
        gate, q, k, v = _heads(layer, x, group)
        bias = (layer.position_bias[:, 0] + layer.time_bias[:, 0])[:, None, None]
        own = (q * k).sum(-1, keepdim=True) + bias
        seen = _taken(layer, q, k_user[0], v_user[0], marks.unsqueeze(1)) + F.silu(own) / layer.n * v
        x = _finished(layer, x, gate, seen, group)
    return x


def _heads(layer: HstuLayer, x: Tensor, group: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gate [T, d], and q, k, v [H, T, D], of x [T, d]."""
    gate, *parts = F.silu(layer.project(layer.norm(x, group))).chunk(4, 1)
    q, k, v = (each.unflatten(1, (layer.heads, -1)).transpose(0, 1) for each in parts)
    return gate, q, k, v


def _taken(layer: HstuLayer, q: Tensor, k: Tensor, v: Tensor, marks: Tensor) -> Tensor:
    """[H, Q, D]: what queries q [H, Q, D] take from k, v [H, K, D]; marks [3, Q or 1, K]."""
    near, since, seen = marks[0], marks[1], marks[2]
    scores = q @ k.transpose(1, 2) + _at(layer.position_bias, near) + _at(layer.time_bias, since)
    return (F.silu(scores) / layer.n * seen.to(q.dtype)) @ v


def _at(bias: Tensor, rows: Tensor) -> Tensor:
    """[H, *rows] of a bias [H, n]. Indexed as it reads, ONNX would have it transposed and back: a quarter of a pass."""
    return bias.index_select(1, rows.reshape(-1)).reshape(len(bias), *rows.shape)


def _finished(layer: HstuLayer, x: Tensor, gate: Tensor, seen: Tensor, group: Tensor | None) -> Tensor:
    """[T, d] behind the layer, of what it saw [H, T, D]."""
    flat = seen.transpose(0, 1).flatten(1)
    return x + layer.finish(gate * layer.attended_norm(flat, group))
