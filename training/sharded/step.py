"""One update over all ranks: dense weights alike everywhere, rows where they belong (MTGRBoost, sections 3 and 5)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from genrec.errors import InputError
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.world import World


class TableStep:
    """Backward passes of one or more batches, then one update weighted by samples.

    Losses are sums over samples. Ranks have different numbers of them, so gradients are summed over ranks and divided
    by the samples of all: the update of one process that has the global batch.
    """

    def __init__(
        self, world: World, embeddings: ShardedEmbeddings, weights: Iterable[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> None:  # fmt: skip
        self.world, self.embeddings, self.optimizer = world, embeddings, optimizer
        self.weights, self._samples = list(weights), 0

    def add(self, loss: torch.Tensor | None, samples: int) -> None:
        """The backward pass of a batch; `loss` is None for a rank that has no sequence this time."""
        if loss is not None:
            loss.backward()
        self.embeddings.collect()
        self._samples += samples

    def update(self) -> int:
        """Take the step; returns the samples of all ranks. InputError on every rank if one has a gradient of NaN."""
        sums = self._flat()
        sound = self.embeddings.sound and bool(torch.isfinite(sums).all())
        self.world.sum(sums)
        told = self.world.gather(np.array([self._samples, sound], np.int64))
        total, self._samples = int(told[:, 0].sum()), 0
        self.optimizer.zero_grad()
        if not told[:, 1].all() or not total:
            self.embeddings.forget()
            if not total:
                raise InputError("batch", "has no sample on any rank", "at least one in all")
            ranks = ", ".join(map(str, np.flatnonzero(1 - told[:, 1])))
            raise InputError(
                "gradients", f"are NaN or infinite for rank {ranks}; no row was changed", "finite numbers"
            )
        for weight, gradient in zip(self.weights, sums.split([w.numel() for w in self.weights]), strict=True):
            weight.grad = gradient.view_as(weight) / total
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.embeddings.step(1 / total)
        return total

    def _flat(self) -> torch.Tensor:
        """All gradients of this rank as one vector; zeros where there are none."""
        grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        return torch.cat([g.reshape(-1) for g in grads]) if grads else torch.zeros(0)
