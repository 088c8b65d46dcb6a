"""HSTU for the next item: a state behind every event of a user, and a score of every item by it (Zhai et al. 2024).

One token per event, which sees itself and the events before it. Layers are those of `genrec.nn.hstu`. A score is the
product of the state and the item's vector, both of length 1, over a temperature. Items are told to the model by the
same vectors. A token is also told how long after its event the next item is asked for: when a user comes back says much
about what he takes. T tokens, I items, d the hidden size.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.nn.hstu import HstuLayer
from genrec.nn.hstu_layout import Layout, time_bucket
from genrec.rank.hstu import NEXT_CONFIG, NEXT_WEIGHTS, NextConfig

SPREAD = 0.02  # standard deviation of first rows


class Events(NamedTuple):
    """A ragged batch: `layout`, and int64[T] each: `item` (catalogue row) and `wait` (seconds until the next)."""

    layout: Layout
    item: Tensor
    wait: Tensor

    def to(self, device: torch.device) -> Events:
        """The same on a device."""
        return Events(self.layout.to(device), self.item.to(device), self.wait.to(device))

    @property
    def newest(self) -> Tensor:
        """int64[B]: the last token of every sequence; no sequence may be empty."""
        return self.layout.offsets[1:] - 1


class EventNorm(nn.LayerNorm):
    """Layer norm [T, d] where all tokens are of one group."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=1e-6)

    def forward(self, x: Tensor, group: Tensor | None = None) -> Tensor:
        """[T, d] of x [T, d]."""
        return super().forward(x)


class HstuNext(nn.Module):
    """Events to states; items to vectors; products of both are scores."""

    files = (NEXT_CONFIG, NEXT_WEIGHTS)

    def __init__(self, config: NextConfig, codes: Tensor) -> None:
        """`codes` int[I, L]: an item's row of its own is added to those of its semantic ID's codes."""
        super().__init__()
        self.config, size = config, config.hidden_size
        self.register_buffer("codes", (codes + torch.from_numpy(config.code_starts)).long())
        self.of_item = _table(config.items, size)
        self.of_code = _table(config.code_rows, size)
        self.of_wait = _table(config.times, size)
        self.layers = nn.ModuleList(HstuLayer(config, EventNorm) for _ in range(config.layers))
        self.drop = nn.Dropout(config.dropout)

    def rows(self) -> Tensor:
        """[I, d]: of all items, as the model is told of them."""
        return self.of_item.weight + self.of_code(cast(Tensor, self.codes)).sum(1)

    def told(self, rows: Tensor, wait: Tensor) -> Tensor:
        """[T, d]: events as the layers read them, of their items' rows [T, d] and buckets of their waits int64[T]."""
        return (rows + self.of_wait(wait)) * self.config.hidden_size**0.5

    def states(self, events: Events, rows: Tensor) -> Tensor:
        """[T, d] of length 1, of events and `rows` of all items."""
        x = self.drop(self.told(rows[events.item], time_bucket(events.wait, self.config.times)))
        for layer in self.layers:
            x = layer(x, events.layout, None)
        return F.normalize(x, dim=1)

    def scores(self, events: Events) -> Tensor:
        """[B, I]: of all items behind the newest event of every sequence, as logits of `temperature`."""
        rows = self.rows()
        return self.states(events, rows)[events.newest] @ vectors(rows).T / self.config.temperature


def vectors(rows: Tensor) -> Tensor:
    """[I, d] of length 1: what states are compared with."""
    return F.normalize(rows, dim=1)


def _table(rows: int, size: int) -> nn.Embedding:
    table = nn.Embedding(rows, size)
    nn.init.normal_(table.weight, std=SPREAD)
    return table
