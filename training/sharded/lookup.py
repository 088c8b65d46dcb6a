"""A table spread over ranks: two exchanges there, one back (MTGRBoost, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from training.embedding.arrays import Float32, Int32, Int64
from training.embedding.kernels import Kernels
from training.embedding.table import DynamicTable, sum_by
from training.sharded.world import World


@dataclass
class Traffic:
    """What look-ups and their gradients cost a rank so far; bytes and ids that stay at home are not sent."""

    ids_asked: int = 0
    ids_sent: int = 0
    bytes_sent: int = 0
    rows_read: int = 0


@dataclass(frozen=True)
class Dedup:
    """Which stages run: `first` before ids are sent, `second` before rows are read."""

    first: bool = True
    second: bool = True


@dataclass
class _Pending:
    """A look-up whose gradients are to come."""

    vectors: torch.Tensor  # [sent ids, dim], a leaf
    sent: Int64
    received: Int64
    rows: Int32  # of the ids received, distinct
    inverse: Int64  # of each id received, its place in `rows`


class ShardedTable:
    """The rows of one merged table that belong to this rank, and the ways to those of other ranks.

    An id belongs to the rank `fmix64(id) mod ranks`: ids themselves are no good, as those of a merged table are alike
    in their low bits (modulo a power of two, its tables' bits would not count).
    """

    def __init__(self, table: DynamicTable, world: World, dedup: Dedup) -> None:
        self.table, self.world, self.dedup = table, world, dedup
        self.traffic, self.sound = Traffic(), True
        self._pending: list[_Pending] = []
        self._sums: list[tuple[Int32, Float32]] = []

    def look_up(self, features: Sequence[Int64], stamp: int) -> tuple[torch.Tensor, ...]:
        """Vectors float32[n, dim] for each feature's merged ids int64[n], whichever ranks have them.

        All features travel together. All ranks call it, if with no id.
        """
        kernels, world = self.table.kernels, self.world
        ids = np.concatenate(features)
        distinct, inverse = kernels.unique(ids) if self.dedup.first else (ids, np.arange(len(ids)))
        places, sent = kernels.by_owner(distinct, world.ranks)
        received = world.swap_counts(sent)
        asked = world.swap(distinct[places], sent, received)
        rows, own_inverse, found = self._read(asked, stamp)
        vectors = torch.from_numpy(world.swap(found, received, sent)).requires_grad_()
        self._pending.append(_Pending(vectors, sent, received, rows, own_inverse))
        self._count(len(ids), sent, received, len(rows) if self.dedup.second else len(asked))
        order = np.empty(len(places), np.int64)
        order[places] = np.arange(len(places))
        ends = np.cumsum([len(each) for each in features])
        return _Spread.apply(vectors, kernels, np.split(order[inverse], ends[:-1]))

    def collect(self) -> None:
        """Send the gradients of all look-ups since the last time to the owners of their ids. All ranks call it.

        `sound` tells whether those that this rank sent are finite numbers.
        """
        for each in self._pending:
            gradient = each.vectors.grad
            mine = np.zeros(each.vectors.shape, np.float32) if gradient is None else gradient.numpy()
            self.sound &= self.table.kernels.sound(mine)
            came = self.world.swap(mine, each.sent, each.received)
            self._sums.append((each.rows, sum_by(self.table.kernels, came, each.inverse, len(each.rows))))
            self._count_bytes(self.table.dimension * 4, each.sent)
        self._pending.clear()

    @property
    def square(self) -> float:
        """The squared norm of the gradients collected, summed per id, of the rows of this rank."""
        return sum(float(np.vdot(sums, sums)) for _, sums in self._summed())

    def step(self, scale: float) -> None:
        """One update by all gradients collected, summed per id and times `scale` (accumulation, section 5.2)."""
        for rows, sums in self._summed():
            self.table.apply(rows, sums, scale)
        self.forget()

    def _summed(self) -> list[tuple[Int32, Float32]]:
        """All gradients collected, each row once."""
        if len(self._sums) > 1:
            rows, sums = (np.concatenate(each) for each in zip(*self._sums, strict=True))
            distinct, inverse = self.table.kernels.unique(rows.astype(np.int64))
            summed = sum_by(self.table.kernels, sums, inverse, len(distinct))
            self._sums = [(distinct.astype(np.int32), summed)]
        return self._sums

    def forget(self) -> None:
        """Drop gradients that are not applied."""
        self.sound = True
        self._pending.clear()
        self._sums.clear()

    def _read(self, asked: Int64, stamp: int) -> tuple[Int32, Int64, Float32]:
        """Distinct rows, the place of each id among them, and the vectors [asked, dim]."""
        kernels = self.table.kernels
        if self.dedup.second:
            distinct, inverse = kernels.unique(asked)
            rows = self.table.rows_of(distinct, stamp)
            found = self.table.vectors(rows)
            return rows, inverse, found if len(rows) == len(asked) else kernels.spread(found, inverse)
        rows = self.table.rows_of(asked, stamp)
        found = self.table.vectors(rows)
        distinct, inverse = kernels.unique(rows.astype(np.int64))  # gradients are summed per id in any case
        return distinct.astype(np.int32), inverse, found

    def _count(self, asked: int, sent: Int64, received: Int64, read: int) -> None:
        here = self.world.rank
        self.traffic.ids_asked += asked
        self.traffic.ids_sent += int(sent.sum() - sent[here])
        self.traffic.rows_read += read
        self._count_bytes(8, sent)
        self._count_bytes(self.table.dimension * 4, received)

    def _count_bytes(self, size: int, counts: Int64) -> None:
        self.traffic.bytes_sent += size * int(counts.sum() - counts[self.world.rank])


class _Spread(torch.autograd.Function):
    """Vectors [distinct, dim] at each index [n]; back, the gradients of each vector are summed."""

    @staticmethod
    def forward(
        ctx: Any, vectors: torch.Tensor, kernels: Kernels, indexes: list[Int64]
    ) -> tuple[torch.Tensor, ...]:
        ctx.indexes, ctx.kernels, ctx.shape = indexes, kernels, vectors.shape
        given = vectors.detach().numpy()
        return tuple(torch.from_numpy(kernels.spread(given, index)) for index in indexes)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sums = np.zeros(ctx.shape, np.float32)
        for gradient, index in zip(gradients, ctx.indexes, strict=True):
            ctx.kernels.add_by(gradient.contiguous().numpy(), index, sums)
        return torch.from_numpy(sums), None, None
