"""All features of a model at once: ids in, vectors out, gradients back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import torch

from genrec.errors import InputError
from training.embedding.arrays import Int64
from training.embedding.kernels import Kernels
from training.embedding.optimizers import Optimizer
from training.embedding.table import DynamicTable
from training.sharded.features import FeatureConfig, MergedTable, merge
from training.sharded.lookup import Dedup, ShardedTable, Traffic
from training.sharded.world import World


class ShardedEmbeddings:
    """The tables that `features` name, merged by dimension and spread over the ranks of `world`."""

    def __init__(
        self, features: Sequence[FeatureConfig], world: World, optimizer: Optimizer | None = None, *,
        dedup: Dedup | None = None, scale: float = 0.02, seed: int = 0, kernels: Kernels | None = None,
        hot_every: int = 0,
    ) -> None:  # fmt: skip
        """Raises InputError; see `merge` and `DynamicTable`."""
        self.features, self.world, self.merged = tuple(features), world, merge(features)
        self.stamp = 0  # steps taken, which look-ups are marked with
        self.sharded = {}
        for merged in self.merged:
            table = DynamicTable(
                merged.dimension, optimizer, scale=scale, seed=seed, kernels=kernels, hot_every=hot_every
            )
            self.sharded[merged.dimension] = ShardedTable(table, world, dedup or Dedup())

    def __call__(self, ids: Mapping[str, Int64]) -> dict[str, torch.Tensor]:
        """Per feature float32[n, dim] of its ids int64[n].

        All ranks call it, one with an empty batch too. Raises InputError, before anything is sent.
        """
        names = {feature.name for feature in self.features}
        if set(ids) != names:
            odd = sorted(names ^ set(ids))[0]
            problem = f"{'lacks' if odd in names else 'has'} {odd!r}"
            raise InputError("features", problem, f"just {', '.join(sorted(names))}")
        found: dict[str, torch.Tensor] = {}
        for merged, packed in [(merged, self._packed(merged, ids)) for merged in self.merged]:
            vectors = self.sharded[merged.dimension].look_up([*packed.values()], self.stamp)
            found |= dict(zip(packed, vectors, strict=True))
        return {each.name: found[each.name] for each in self.features}

    def collect(self) -> None:
        """Send the gradients of the look-ups since the last time to their owners; after every backward pass."""
        for sharded in self.sharded.values():
            sharded.collect()

    @property
    def sound(self) -> bool:
        """Whether all gradients that this rank sent are finite numbers."""
        return all(sharded.sound for sharded in self.sharded.values())

    @property
    def square(self) -> float:
        """The squared norm of the gradients collected, summed per id, of the rows of this rank."""
        return sum(sharded.square for sharded in self.sharded.values())

    def set_rate(self, rate: float) -> None:
        """The learning rate of all rows from now on."""
        for sharded in self.sharded.values():
            sharded.table.optimizer = replace(sharded.table.optimizer, rate=rate)

    def step(self, scale: float = 1.0) -> None:
        """Update the rows of this rank by the gradients collected times `scale`; then some become hot or cold."""
        self.stamp += 1
        for sharded in self.sharded.values():
            sharded.step(scale)
            sharded.table.sweep(self.stamp)

    def forget(self) -> None:
        """Drop gradients that are not applied."""
        for sharded in self.sharded.values():
            sharded.forget()

    @property
    def traffic(self) -> Traffic:
        """Of all tables together."""
        parts = [sharded.traffic for sharded in self.sharded.values()]
        return Traffic(*(sum(getattr(part, each.name) for part in parts) for each in fields(Traffic)))

    def _packed(self, merged: MergedTable, ids: Mapping[str, Int64]) -> dict[str, Int64]:
        """Merged ids of the features of one table."""
        mine = [feature for feature in self.features if feature.table in merged.tables]
        return {feature.name: merged.pack(feature, ids[feature.name]) for feature in mine}
