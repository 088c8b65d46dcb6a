"""The ranker: one discriminant token per candidate reads the user's tokens and its item's (BAT, section 4).

Items never see each other and all start at one position, so KV of users and items may come from anywhere. There are
three orders. In `user`, items also see the user: the user is the prefix. In `item`, the user also sees all items: the
items are the prefix, and a score depends on the other candidates; in the other two it does not. In `split` (ours, after
block attention) neither sees the other, and both are prefixes at once. A user's entry is the same in `user` and
`split`, an item's in `item` and `split`. A discriminant token sees user and item from the same distances in every
order. Where it has a `reach`, it sees the newest tokens of the user alone: a ranking takes as long whatever his
history's length, once his entry is there.

Tokens of users and items go through a generator's layers. The discriminant tokens may have layers of their own; then
the generator can stay as it is, and what its prefill left is the user's entry. C candidates, t tokens each.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from genrec.nn.attention import Attend, behind_items, discriminant_attention, item_attention
from genrec.nn.functions import causal_attention, rotary, rows
from genrec.nn.model import Block, Generator
from genrec.rank.options import RankerConfig

KV = list[tuple[Tensor, Tensor]]  # per layer k, v
IDENTIFIER = (
    0.25  # weight of an item's identifier in its score: starts scores at the scale of log-probabilities
)


class Ranker(nn.Module):
    """A generator that computes KV of users and items, and what turns a discriminant token into a score."""

    def __init__(self, generator: Generator, shared: bool, dropout: float = 0.0, layers: int = 0) -> None:
        """`shared`: the generator stays as it is, and discriminant tokens have a copy of its last `layers` (0: of all).

        Raises InputError for more than there are.
        """
        super().__init__()
        self.generator, self.config, self.shared = generator, generator.config, shared
        self.options = RankerConfig(shared, item_tokens=self.config.levels, layers=layers)
        self.first = self.options.first_layer(self.config)
        self.own = copy.deepcopy(generator.layers[self.first :]) if shared else nn.ModuleList()
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

    def prefix(self, tokens: Tensor, start: Tensor | int = 0, attend: Attend | None = None) -> KV:
        """KV [B, G, Q, D] of tokens [B, Q] at the positions from `start` on.

        They see each other up to themselves, and what `attend` says (`genrec.nn.attention.behind` and `behind_items`).
        Without it: users' entries, and in another layout items'.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device) + start
        cos, sin = self._angles(positions)
        x, found = self.drop(self.generator.embed(tokens)), []
        blocks = self.generator.blocks()
        for n, layer in enumerate(blocks):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            found.append((k.transpose(1, 2), v.transpose(1, 2)))
            if layer is not blocks[-1]:  # nobody reads what the last layer makes
                x = layer.finish(x, attend(n, q, k, v) if attend else causal_attention(q, k, v))
        return found

    def items(self, tokens: Tensor) -> Tensor:
        """Entries [C, 2N, G, t, D] of items with tokens [C, t], at the positions from 0 on."""
        return table_of(self.prefix(tokens))

    def candidates(self, tokens: Tensor, user: KV, length: Tensor) -> Tensor:
        """Entries [B * C, 2N, G, t, D] of candidates with tokens [B, C, t] that see the user: order `user`."""
        batch, many, count = tokens.shape
        positions = (length.view(-1, 1, 1) + torch.arange(count, device=length.device)).expand(-1, many, -1)
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

    def states(self, user: KV, length: Tensor, items: Tensor, chosen: Tensor, order: str) -> Tensor:
        """Last hidden states [B, C, hidden] of discriminant tokens.

        The user's entry is [B, G, S, D] per layer, `length` [B] tokens of it; candidates' entries are rows `chosen`
        [B, C] of `items` [M, 2N, G, t, D]. In all orders users and items are as far away as in `user`: what was learnt
        of distances in one order is true in the others.
        """
        count = items.shape[3]
        start = count if order == "item" else 0  # of the user
        angles = [self._angles((start + length + count).view(-1, 1))]
        if order != "user":  # the items' keys stand at the positions from 0 on: the query is turned once more
            angles.append(self._angles(torch.full_like(length, count).view(-1, 1)))
        x = self.discriminant.expand(*chosen.shape, -1)
        for n, layer in enumerate(self.layers(), self.first):
            queries = layer.self_attn.queries(layer.input_layernorm(x), *angles)
            attended = discriminant_attention(
                queries[0], queries[-1], *user[n], length, items, chosen, n, self.options.reach
            )
            x = layer.finish(x, attended)
        return self.norm(x)

    def table(self) -> Tensor:
        """[V, hidden]: the sum of the rows of an item's codes times its state is its score."""
        return IDENTIFIER * self.identifiers + self.score / self.config.levels

    def scores(self, states: Tensor, codes: Tensor) -> Tensor:
        """[B, C] of states [B, C, hidden] of items with `codes` int[B, C, L], tokens of their semantic IDs."""
        return (states * rows(self.table(), codes).sum(2)).sum(-1)

    def forward(self, user: Tensor, length: Tensor, items: Tensor, codes: Tensor, order: str) -> Tensor:
        """Everything computed: user tokens [B, S] padded right, `length` [B], items' tokens [B, C, t] -> [B, C]."""
        batch, many, count = items.shape
        chosen = torch.arange(batch * many, device=items.device).view(batch, many)
        if order == "user":
            entry = self.prefix(user)
            entries = self.candidates(items, entry, length)
        else:
            entries = self.items(items.flatten(0, 1))
            after_items = (count, behind_items(entries, chosen)) if order == "item" else ()
            entry = self.prefix(user, *after_items)
        states = self.states(entry, length, entries, chosen, order)
        return self.scores(states, codes)


def table_of(kv: KV) -> Tensor:
    """Per layer k, v [C, G, t, D] as rows of whole items: [C, 2N, G, t, D]."""
    return torch.stack([each for pair in kv for each in pair], 1)
