"""A training of the generator on a device beside the same one on the CPU, in whole float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from perf.gpu.train import Setting, begin, products
from training.generator.run import GeneratorRun
from training.shards import checkpoint

TOLERANCE = 2e-3  # of losses, relative: sums in another order, over some updates
SAME_FIGURES = 0.02  # of NDCG@10 and the like: a tie falls otherwise
DRAWN_AGAIN = 1e-5  # relative: one forward pass on one device, with the same weights and the same dropout


def check(setting: Setting, device: torch.device, folder: Path) -> dict[str, float]:
    """Largest differences from the CPU. Raises AssertionError for one that is too large."""
    host, plain, dropping = torch.device("cpu"), replace(setting.small, dropout=0.0), setting.small
    with products("highest"):
        there, here = begin(setting, plain, device), begin(setting, plain, host)
        found = {"losses": off(losses(there, setting.steps), losses(here, setting.steps))}
        values = [run.validate()[0] for run in (there, here)]
        found["NDCG@10"] = abs(values[0] - values[1])
        assert found["NDCG@10"] < SAME_FIGURES, f"NDCG@10 {values[0]}, on the CPU {values[1]}"
        back = taken_up(there, setting, host, folder / "plain")
        found["losses_gone_on_on_the_cpu"] = off(losses(there, 2), losses(back, 2))
        there = begin(setting, dropping, device)
        losses(there, 2)
        again = losses(taken_up(there, setting, device, folder / "dropping"), 1)
        checkpoint.load(
            folder / "dropping", there.world, there.embeddings
        )  # chance, of which the other one drew
        found["loss_with_dropout_drawn_again"] = off(losses(there, 1), again, DRAWN_AGAIN)
    return found


def off(found: np.ndarray, wanted: np.ndarray, tolerance: float = TOLERANCE) -> float:
    """The largest relative difference. Raises AssertionError for one beyond `tolerance`."""
    worst = float(np.abs(found / wanted - 1).max())
    assert worst < tolerance, f"losses {found}, not {wanted}"
    return worst


def taken_up(run: GeneratorRun, setting: Setting, device: torch.device, folder: Path) -> GeneratorRun:
    """`run` saved, and another one on `device` that goes on from there with the very same tensors."""
    checkpoint.save(folder, run.world, run.embeddings, run.steps, {}, run.state())
    other = begin(setting, run.settings, device)
    other.take_up(checkpoint.load(folder, other.world, other.embeddings).dense)
    mine, theirs = other.state(), run.state()
    changed = [name for name, each in theirs.items() if not torch.equal(mine[name].cpu(), each.cpu())]
    assert mine.keys() == theirs.keys() and not changed, f"a checkpoint on {device} has other {changed}"
    return other


def losses(run: GeneratorRun, steps: int) -> np.ndarray:
    """Of the next updates, float64[steps]."""
    todo = run.batches(0)
    return np.array([run.step(todo[run.steps % len(todo)], 0.0) for _ in range(steps)])
