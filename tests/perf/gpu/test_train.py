"""What the GPU script says of a training, tried on CPU tensors: right ones pass, wrong ones do not."""

import numpy as np
import pytest
import torch

from perf.gpu import parts, train, train_check
from perf.gpu.table import table
from training.sharded.world import World

CPU = torch.device("cpu")


def test_a_training_that_is_right_passes_the_checks(tmp_path):
    torch.set_num_threads(1)
    found = train_check.check(train.DRY, CPU, tmp_path)
    assert found and set(found.values()) == {0.0}
    rows = train.measure(train.DRY, CPU, 1e12)
    assert rows["large"]["operations_per_second"] > 0 and rows["small"]["events"] == 64
    kept = parts.GpuResults()
    kept.results["train"] = rows
    assert "training, small, on the CPU: " in table(kept.results) and "a step of 64 events" in table(
        kept.results
    )


def test_a_training_that_is_wrong_on_the_device_fails_the_checks(tmp_path, monkeypatch):
    """Another loss there, or dropout that does not go on where it was saved."""
    torch.set_num_threads(1)
    right, begun = train.begin, []

    def learns_otherwise(setting, recipe, device):
        begun.append(right(setting, recipe, device))
        if len(begun) == 1:
            begun[0].model.lm_head.weight.data += torch.randn_like(begun[0].model.lm_head.weight)
        return begun[-1]

    with monkeypatch.context() as patched, pytest.raises(AssertionError, match=r"losses \["):
        patched.setattr(train_check, "begin", learns_otherwise)
        train_check.check(train.DRY, CPU, tmp_path / "a")
    monkeypatch.setattr(World, "take_random_state", lambda world, states: True)
    with pytest.raises(AssertionError, match=r"losses \["):
        train_check.check(train.DRY, CPU, tmp_path / "b")


def test_operations_of_a_training_step_by_hand():
    """8 windows of 8 events, 3 tokens each: 3 passes of the layers' matrices, a head's third, and causal attention."""
    done = train.operations(train.begin(train.DRY, train.TINY, CPU).model, np.tile([0, 8], (8, 1)))
    matrices, head, attention = 4 * 16 * 16 + 3 * 16 * 32, 16 * (256 + 64 + 16) / 3, 16 * 24
    assert done == 3 * 2 * 192 * (matrices + head + attention)
