"""One update over all ranks: dense weights alike everywhere, rows where they belong (MTGRBoost, sections 3 and 5)."""

from __future__ import annotations

import math
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
        optimizer: torch.optim.Optimizer, largest_norm: float = math.inf,
    ) -> None:  # fmt: skip
        """`largest_norm` is what the gradients of all weights and rows together are clipped to."""
        self.world, self.embeddings, self.optimizer = world, embeddings, optimizer
        self.weights, self.largest_norm = list(weights), largest_norm
        self.loss = 0.0  # per sample of the last update, over all ranks
        self._samples, self._loss = 0, 0.0

    def add(self, loss: torch.Tensor | None, samples: int) -> None:
        """The backward pass of a batch; `loss` is None for a rank that has no sequence this time."""
        if loss is not None:
            loss.backward()
            self._loss += float(loss.detach())
        self.embeddings.collect()
        self._samples += samples

    def update(self) -> int:
        """Take the step; returns the samples of all ranks. InputError on every rank if one has a gradient of NaN."""
        sums = self._flat()
        sound = self.embeddings.sound and bool(torch.isfinite(sums).all())
        self.world.sum(sums)
        mine = [self._samples, sound, self._loss, self.embeddings.square]
        told = self.world.gather(np.array(mine, np.float64))
        total, self._samples, self._loss = int(told[:, 0].sum()), 0, 0.0
        self.optimizer.zero_grad()
        if not told[:, 1].all() or not total:
            self.embeddings.forget()
            if not total:
                raise InputError("batch", "has no sample on any rank", "at least one in all")
            ranks = ", ".join(map(str, np.flatnonzero(told[:, 1] == 0)))
            raise InputError(
                "gradients", f"are NaN or infinite for rank {ranks}; no row was changed", "finite numbers"
            )
        self.loss = float(told[:, 2].sum()) / total
        norm = math.sqrt(float(sums @ sums) + told[:, 3].sum()) / total
        scale = min(1.0, self.largest_norm / (norm + 1e-6)) / total
        sums *= scale
        for weight, gradient in zip(self.weights, sums.split([w.numel() for w in self.weights]), strict=True):
            weight.grad = gradient.view_as(weight)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.embeddings.step(scale)
        return total

    def _flat(self) -> torch.Tensor:
        """All gradients of this rank as one vector; zeros where there are none."""
        grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        return torch.cat([g.reshape(-1) for g in grads]) if grads else torch.zeros(0)
