"""What every trainer does at a step: the rate warms up and falls, an average follows."""

from __future__ import annotations

import math

import torch
from torch import nn

LARGEST_NORM = 1.0  # of all gradients together


def cosine(steps: int, warm_up: int, done: float, least: float) -> float:
    """Share of the learning rate after `steps`: up in `warm_up` of them, then down to `least` as `done` goes to 1."""
    warm = min(1.0, (steps + 1) / warm_up)
    return warm * max(0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)), least)


def follow(average: nn.Module, model: nn.Module, averaging: float, steps: int) -> None:
    """Move the `average` of what learns towards the model; it forgets its random start.

    Early on it spans a tenth of the `steps` taken, later its decay is `averaging`.
    """
    decay = min(averaging, (steps + 1) / (steps + 10))
    kept, new = ([p for p in each.parameters() if p.requires_grad] for each in (average, model))
    with torch.no_grad():
        torch._foreach_lerp_(kept, new, 1 - decay)
