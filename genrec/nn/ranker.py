"""The ranker: one discriminant token per candidate reads the user's tokens and its item's (BAT, section 4).

Items never see each other and all start at one position, so a score depends on the user and the item alone, and KV of
either may come from anywhere. There are three orders. In `user`, items also see the user: the user is the prefix. In
`item`, the user also sees all items: the items are the prefix. In `split` (ours, after block attention) neither sees
the other, and both are prefixes at once. A user's entry is the same in `user` and `split`, an item's in `item` and
`split`.

Tokens of users and items go through a generator's layers. The discriminant tokens may have layers of their own; then
the generator can stay as it is, and what its prefill left is the user's entry. C candidates, t tokens each.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from genrec.nn.attention import discriminant_attention, item_attention, past_attention
from genrec.nn.functions import linear, rotary, rotated_heads, rows
from genrec.nn.model import Block, Generator, RMSNorm
from genrec.rank.options import RankerConfig

ORDERS = ("user", "item", "split")
KV = list[tuple[Tensor, Tensor]]  # per layer k, v
IDENTIFIER = (
    0.25  # weight of an item's identifier in its score: starts scores at the scale of log-probabilities
)


class Ranker(nn.Module):
    """A generator that computes KV of users and items, and what turns a discriminant token into a score."""

    def __init__(self, generator: Generator, shared: bool, dropout: float = 0.0) -> None:
        """`shared`: the generator stays as it is, and discriminant tokens have a copy of its layers."""
        super().__init__()
        self.generator, self.config, self.shared = generator, generator.config, shared
        self.options = RankerConfig(shared, item_tokens=self.config.levels)
        self.own = copy.deepcopy(generator.layers) if shared else nn.ModuleList()
        self.norm = copy.deepcopy(generator.norm)
        self.discriminant = nn.Parameter(0.02 * torch.randn(self.config.hidden_size))
        # An item's identifier is the sum of its codes' rows: no table grows with the catalogue.
        self.identifiers = nn.Parameter(generator.lm_head.weight.detach().clone())
        self.score = nn.Parameter(torch.zeros(self.config.hidden_size))
        self.drop = nn.Dropout(dropout)
        for weight in generator.parameters():
            weight.requires_grad_(not shared)

    def layers(self) -> list[Block]:
        """Of discriminant tokens."""
        return cast("list[Block]", list(self.own)) if self.shared else self.generator.blocks()

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary(positions, self.config.head_dim, self.config.rope_theta)

    def prefix(self, tokens: Tensor, start: int | Tensor, past: KV) -> KV:
        """KV [B, G, Q, D] of tokens [B, Q] at the positions from `start` on, behind a past [B, G, P, D] per layer."""
        positions = torch.arange(tokens.shape[1], device=tokens.device) + start
        cos, sin = self._angles(positions)
        x, found = self.drop(self.generator.embed(tokens)), []
        blocks = self.generator.blocks()
        for layer, (past_k, past_v) in zip(blocks, past, strict=True):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            found.append((k.transpose(1, 2), v.transpose(1, 2)))
            if layer is not blocks[-1]:  # nobody reads what the last layer makes
                x = layer.finish(x, past_attention(q, past_k, past_v, k, v))
        return found

    def nothing(self, batch: int) -> KV:
        """A past of no tokens."""
        empty = torch.zeros(batch, self.config.num_key_value_heads, 0, self.config.head_dim)
        return [(empty, empty)] * self.config.num_hidden_layers

    def items(self, tokens: Tensor) -> Tensor:
        """Entries [C, 2N, G, t, D] of items with tokens [C, t], at the positions from 0 on."""
        return table_of(self.prefix(tokens, 0, self.nothing(len(tokens))))

    def candidates(self, tokens: Tensor, user: KV, length: Tensor) -> Tensor:
        """Entries [B * C, 2N, G, t, D] of candidates with tokens [B, C, t] that see the user: order `user`."""
        batch, many, count = tokens.shape
        positions = (length.view(-1, 1, 1) + torch.arange(count)).expand(-1, many, -1)
        cos, sin = self._angles(positions.reshape(batch, -1))
        x, found = self.drop(self.generator.embed(tokens.reshape(batch, -1))), []
        blocks = self.generator.blocks()
        for layer, (shared_k, shared_v) in zip(blocks, user, strict=True):
            q, k, v = (
                each.unflatten(1, (many, count))
                for each in layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            )
            found.append((k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1).transpose(1, 2)))
            if layer is not blocks[-1]:
                attended = item_attention(q, shared_k, shared_v, k, v, length)
                x = layer.finish(x, attended.flatten(1, 2))
        return table_of(found)

    def scores(
        self, user: KV, length: Tensor, items: Tensor, chosen: Tensor, codes: Tensor, behind_item: Tensor
    ) -> Tensor:
        """float [B, C] of candidates whose entries are rows `chosen` [B, C] of `items` [M, 2N, G, t, D].

        The user's entry is [B, G, S, D] per layer, `length` [B] tokens of it. `codes` int[B, C, L] are tokens of the
        candidates' semantic IDs. `behind_item` [B] is the position behind an item's tokens as their keys have it.
        """
        behind_user = length + items.shape[3]
        at_user, at_item = (self._angles(each.view(-1, 1)) for each in (behind_user, behind_item))
        x = self.discriminant.expand(*chosen.shape, -1)
        for n, layer in enumerate(self.layers()):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            raw = linear(normed, attention.q_proj.weight, attention.q_proj.bias)
            norm = (
                (attention.q_norm.weight, attention.q_norm.eps)
                if isinstance(attention.q_norm, RMSNorm)
                else ()
            )
            q, q_item = (rotated_heads(raw, attention.size, *angles, *norm) for angles in (at_user, at_item))
            x = layer.finish(x, discriminant_attention(q, q_item, *user[n], length, items, chosen, n))
        identifiers = rows(self.identifiers, codes).sum(2) * IDENTIFIER + self.score
        return (self.norm(x) * identifiers).sum(-1)

    def forward(self, user: Tensor, length: Tensor, items: Tensor, codes: Tensor, order: str) -> Tensor:
        """Everything computed: user tokens [B, S] padded right, `length` [B], items' tokens [B, C, t] -> [B, C].

        `codes` as in `scores`.
        """
        (batch, many, count), levels = items.shape, self.config.num_hidden_layers
        chosen = torch.arange(batch * many).view(batch, many)
        behind_user, behind_item = length + count, torch.full_like(length, count)
        if order == "user":
            entry = self.prefix(user, 0, self.nothing(batch))
            table, behind_item = self.candidates(items, entry, length), behind_user
        else:
            table = self.items(items.flatten(0, 1))
            past = self.nothing(batch)
            if order == "item":
                past = [all_items(table.unflatten(0, (batch, many)), n) for n in range(levels)]
                behind_item = behind_user
            entry = self.prefix(user, count if order == "item" else 0, past)
        return self.scores(entry, length, table, chosen, codes, behind_item)


def table_of(kv: KV) -> Tensor:
    """Per layer k, v [C, G, t, D] as rows of whole items: [C, 2N, G, t, D]."""
    return torch.stack([each for pair in kv for each in pair], 1)


def all_items(entries: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Entries [B, C, 2N, G, t, D] as the past of a user: k, v of a layer [B, G, C * t, D]."""
    k, v = (entries[:, :, n].transpose(1, 2).flatten(2, 3) for n in (2 * layer, 2 * layer + 1))
    return k, v
