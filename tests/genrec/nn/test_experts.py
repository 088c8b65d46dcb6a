"""Experts that tasks share: the module is its plain loop, and each task has a gate and a tower of its own."""

from __future__ import annotations

import pytest
import torch

from genrec.nn.experts import Experts
from tests.oracles.experts_twin import slow_experts


def some_experts(experts: int, tasks: int) -> Experts:
    """One whose gates are far from even."""
    torch.manual_seed(experts)
    head = Experts(6, experts, tasks).double()
    with torch.no_grad():
        head.gates.weight.mul_(5)
    return head


@pytest.mark.parametrize(("experts", "tasks"), [(1, 1), (1, 2), (3, 1), (4, 2), (5, 3)])
def test_scores_and_gradients_are_those_of_the_loop(experts: int, tasks: int) -> None:
    found = []
    for compute in (Experts.forward, slow_experts):
        head = some_experts(experts, tasks)
        x = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
        scores = compute(head, x)
        scores.square().sum().backward()
        found.append([scores.detach(), x.grad, *(each.grad for each in head.parameters())])
    assert found[0][0].shape == (7, tasks)
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_a_task_has_its_own_gate_and_tower_and_shares_experts() -> None:
    head, x = some_experts(4, 2), torch.randn(5, 6, dtype=torch.float64)
    before = head(x)
    with torch.no_grad():
        head.gates.weight[4:] += 1 + torch.rand(4, 6)  # of the second task
        head.towers[1][0].weight += 1
    moved = head(x)
    assert torch.equal(moved[:, 0], before[:, 0]) and (moved[:, 1] != before[:, 1]).all()
    with torch.no_grad():
        head.experts.weight[:6] += 1
    assert (head(x) != moved).all()


def test_no_candidates_have_no_scores() -> None:
    assert some_experts(4, 2)(torch.zeros(0, 6, dtype=torch.float64)).shape == (0, 2)
