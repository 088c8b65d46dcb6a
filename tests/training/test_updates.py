"""What every trainer does at a step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from training.run import Pace, Run
from training.sharded.world import World
from training.updates import cosine, follow


def test_the_rate_warms_up_and_falls_to_the_least() -> None:
    assert cosine(0, 100, 0.0, 0.01) == pytest.approx(0.01)
    assert cosine(99, 100, 0.0, 0.01) == pytest.approx(1.0)
    assert cosine(500, 100, 0.5, 0.01) == pytest.approx(0.5)
    assert cosine(500, 100, 1.0, 0.01) == cosine(500, 100, 1.7, 0.01) == pytest.approx(0.01)


def test_parts_of_a_model_have_their_shares_of_the_rate() -> None:
    """Adam's first step moves a weight by its rate, whatever its gradient is."""
    model = nn.ModuleList([nn.Linear(1, 1) for _ in range(2)])
    pace, shares = Pace(0.1, 0.0, 0.9, 1, 1.0), dict(zip(model, (1.0, 0.25), strict=True))
    run = Run(World(), model, copy.deepcopy(model), pace, shares=shares)
    before = [each.detach().clone() for each in model.parameters()]
    run.update.add(sum(each.sum() for each in model.parameters()), 1)
    run.learn(0.0)
    moved = [(old - new).item() for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == pytest.approx([0.1, 0.1, 0.025, 0.025])


def test_the_average_follows_what_learns_alone() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)])
    average = copy.deepcopy(model)
    with torch.no_grad():
        for each in model.parameters():
            each += 1.0
    before = copy.deepcopy(average)
    follow(average, model, 0.9, 10**6)
    assert torch.allclose(average[0].weight, before[0].weight + 0.1)
    assert torch.equal(average[1].weight, before[1].weight)
    early = copy.deepcopy(before)
    follow(early, model, 0.9, 1)
    assert torch.allclose(early[0].weight, before[0].weight + 9 / 11)
