"""What every trainer does at a step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from training.updates import LARGEST_NORM, cosine, follow, update


def test_the_rate_warms_up_and_falls_to_the_least() -> None:
    assert cosine(0, 100, 0.0, 0.01) == pytest.approx(0.01)
    assert cosine(99, 100, 0.0, 0.01) == pytest.approx(1.0)
    assert cosine(500, 100, 0.5, 0.01) == pytest.approx(0.5)
    assert cosine(500, 100, 1.0, 0.01) == cosine(500, 100, 1.7, 0.01) == pytest.approx(0.01)


def test_a_large_gradient_is_clipped_and_each_group_has_its_rate() -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimiser = torch.optim.SGD([{"params": [each]} for each in weights], lr=9.0)
    update(optimiser, 3e3 * weights[0].sum() + 4e3 * weights[1].sum(), [1.0, 0.5])
    assert [each.item() for each in weights] == pytest.approx([-0.6 * LARGEST_NORM, -0.4 * LARGEST_NORM])


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
