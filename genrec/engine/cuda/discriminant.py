"""Discriminant tokens of rankings over KV that lies on the device: order `split` (BAT, section 4, and ours).

The slow twin is `genrec.nn.ranker.Ranker.states`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genrec.engine.cuda.operations import Operations
from genrec.engine.cuda.stack import Stack
from genrec.nn.attention import discriminant_attention
from genrec.nn.ranker import Ranker

# As `candidate_attention`, whose arguments are those of `XAttentionKernel`.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def candidate_attention(
    q: Tensor, shared_k: Tensor, shared_v: Tensor, own_k: Tensor, own_v: Tensor, length: Tensor,
    own_q: Tensor, rows: Tensor,
) -> Tensor:  # fmt: skip
    """What the attention kernel computes of a ranking, by torch.

    q [B, C, H, D] reads the first `length` [B] tokens of users' shared k, v [B, G, S, D], and own_q, the same turned to
    its place in an item, row `rows` [B, C] of items' k, v [M, t, G, D]. Returns [B, C, H, D].
    """
    items = torch.stack((own_k, own_v), 1).transpose(2, 3)
    return discriminant_attention(q, own_q, shared_k, shared_v, length, items, rows, 0)


class Discriminant:
    """States of discriminant tokens in order `split`, on one device."""

    def __init__(self, ranker: Ranker, attend: Attend, operations: Operations) -> None:
        self._stack = Stack(ranker.layers(), ranker.norm, ranker.config, operations)
        self._token, self._attend = ranker.discriminant.detach(), attend
        self._first, self._item_tokens = ranker.first, ranker.options.item_tokens

    @torch.no_grad()
    def states(self, user: Tensor, seen: Tensor, ends: Tensor, items: Tensor, rows: Tensor) -> Tensor:
        """float32 [B, C, hidden] over users [2N, B, G, S, D] and items, rows [B, C] of [2N, M, t, G, D].

        `seen` [B]: tokens of a user that are there and count; `ends` [B]: of his whole prefix, behind which the
        tokens stand.
        """
        stack, layers = self._stack, self._stack.layers
        x, normed = stack.first(self._token.expand(*rows.shape, -1).contiguous())
        behind_user = stack.tables((ends + self._item_tokens)[:, None])
        behind_item = stack.tables(torch.full_like(ends[:1, None], self._item_tokens))
        none = x.new_empty(*rows.shape, 0, stack.config.head_dim)
        for n, layer in enumerate(layers):
            product, at = layer.product(normed, stack.queries), 2 * (n + self._first)
            q, own_q = (stack.heads(layer, product, each, none, none) for each in (behind_user, behind_item))
            attended = self._attend(q, user[at], user[at + 1], items[at], items[at + 1], seen, own_q, rows)
            x, normed = stack.finish(n, x, attended)
        return normed.float()
