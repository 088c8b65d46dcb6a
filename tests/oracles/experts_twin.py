"""Experts, gates and towers one number at a time: MMoE, read aloud."""

from __future__ import annotations

import torch
from torch import Tensor

from genrec.nn.experts import Experts


def slow_experts(head: Experts, x: Tensor) -> Tensor:
    """[n, tasks] of x [n, d]; torch differentiates it."""
    tasks, experts = head.shape
    size = x.shape[1]
    rows = []
    for row in x:
        made = []
        for expert in range(experts):
            own = slice(expert * size, (expert + 1) * size)
            weight, bias = head.experts.weight[own], head.experts.bias[own]
            sums = [(weight[i] * row).sum() + bias[i] for i in range(size)]
            made.append(torch.stack([each * torch.sigmoid(each) for each in sums]))
        logits = []
        for task in range(tasks):
            first = task * experts
            says = [
                (head.gates.weight[first + expert] * row).sum() + head.gates.bias[first + expert]
                for expert in range(experts)
            ]
            total = sum(torch.exp(each) for each in says)
            mixed = sum(torch.exp(says[expert]) / total * made[expert] for expert in range(experts))
            logits.append(head.towers[task](mixed)[0])
        rows.append(torch.stack(logits))
    return torch.stack(rows)
