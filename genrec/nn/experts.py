"""Several tasks over experts that they share: multi-gate mixture of experts (MMoE; MTGRBoost, eq. 4).

A gate of its own mixes the experts for every task, and a small tower makes the mixture a logit. All experts count, not
the k with the largest gates: of so few and so small ones, leaving some out saves nothing that is large. n candidates, d
the hidden size, E experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """[n, d] to logits [n, tasks]."""

    def __init__(self, size: int, experts: int, tasks: int) -> None:
        super().__init__()
        self.shape = tasks, experts
        self.experts = nn.Linear(size, experts * size)  # of all experts one behind the other: one product
        self.gates = nn.Linear(size, tasks * experts)
        self.towers = nn.ModuleList(_tower(size) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, tasks] of x [n, d]."""
        found = F.silu(self.experts(x)).unflatten(1, (self.shape[1], -1))  # [n, E, d]
        mixed = self.gates(x).unflatten(1, self.shape).softmax(2) @ found  # [n, tasks, d]
        return torch.cat([tower(mixed[:, task]) for task, tower in enumerate(self.towers)], 1)


def _tower(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, size // 2), nn.SiLU(), nn.Linear(size // 2, 1))
