"""Rows by id of an HSTU ranker in training: of items and of values of users' features, in dynamic tables over ranks.

All are as wide as the model, so their tables are merged: one look-up of a pass finds them (MTGRBoost, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from genrec.nn.hstu import HstuRanker
from training.embedding.optimizers import RowAdam
from training.embedding.table import Rows
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig, MergedTable
from training.sharded.lookup import ShardedTable
from training.sharded.world import World

ITEM, FEATURE = "item", "feature"
PLAIN = {ITEM: "of_item", FEATURE: "of_feature"}  # the plain tables of a model; row 0 of each is none
SCALE = 0.035  # first rows are uniform: as wide as the plain tables' normal ones


class RowsById:
    """Used instead of a model's plain tables: those of `embeddings`, whose ranks have them in the host's memory."""

    def __init__(self, world: World, size: int, optimizer: RowAdam, seed: int, hot_every: int) -> None:
        """Rows of `size` numbers. `optimizer` keeps their averages."""
        self.world, self.optimizer = world, optimizer
        features = [FeatureConfig(name, name, size) for name in PLAIN]
        self.embeddings = ShardedEmbeddings(
            features, world, optimizer, scale=SCALE, seed=seed, hot_every=hot_every
        )

    def __call__(self, item: Tensor, feature: Tensor) -> Tensor:
        """[T, d] of int64[T] each, which count from 1; 0 is none: zeros. All ranks call it, one without tokens too."""
        given = {ITEM: item, FEATURE: feature}
        places = {name: each.nonzero()[:, 0] for name, each in given.items()}
        ids = {name: each[places[name]].cpu().numpy() - 1 for name, each in given.items()}
        rows = torch.cat([*self.embeddings(ids).values()]).to(item.device)
        return rows.new_zeros(len(item), rows.shape[1]).index_add(0, torch.cat([*places.values()]), rows)

    @torch.no_grad()
    def average_into(self, model: HstuRanker) -> None:
        """Fill the plain tables of `model` with averages; zeros for what was never seen. All ranks call it."""
        weights = {name: torch.zeros(table.shape) for name, table in _plain(model)}
        for ids, _, state, _ in self._sharded.table.export():
            averages = torch.from_numpy(self.optimizer.averages(state, self._merged.dimension))
            number, raw = self._merged.unpack(ids)
            for table, name in enumerate(self._merged.tables):
                mine = number == table
                weights[name][raw[mine] + 1] = averages[mine]
        for name, table in _plain(model):
            table.copy_(self.world.sum(weights[name]))  # every row is of one rank

    def begin_with(self, model: HstuRanker) -> None:
        """Rows, and their averages, are those of the plain tables of `model`; without moments."""
        tables, table = [each[1:].cpu().numpy() for _, each in _plain(model)], self._sharded.table
        features = zip(self.embeddings.features, tables, strict=True)
        ids = np.concatenate([self._merged.pack(each, np.arange(len(rows))) for each, rows in features])
        places, counts = table.kernels.by_owner(ids, self.world.ranks)
        first = int(counts[: self.world.rank].sum())
        mine = places[first : first + int(counts[self.world.rank])]
        rows = np.concatenate(tables)[mine]
        state = np.zeros((len(mine), table.optimizer.width(table.dimension)), np.float32)
        self.optimizer.averages(state, table.dimension)[:] = rows
        table.put(Rows(ids[mine], rows, state, np.zeros((len(mine), 2), np.uint32)))

    @property
    def _merged(self) -> MergedTable:
        (merged,) = self.embeddings.merged
        return merged

    @property
    def _sharded(self) -> ShardedTable:
        (sharded,) = self.embeddings.sharded.values()
        return sharded


def _plain(model: HstuRanker) -> Iterator[tuple[str, Tensor]]:
    """Plain tables [n + 1, d] of a model by the names of ours."""
    for name, table in PLAIN.items():
        yield name, getattr(model, table).weight.detach()
