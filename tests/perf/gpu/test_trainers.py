"""What the GPU script says of trainings of rankers, draft heads and HSTU models, tried on CPU tensors."""

import numpy as np
import pytest
import torch

from perf.gpu import train, trainers
from training.sharded.world import World

CPU = torch.device("cpu")


def test_trainings_that_are_right_pass_the_checks(tmp_path, monkeypatch):
    """Chance is another one in each of them, as it is on another device."""
    torch.set_num_threads(1)
    seeds = iter(range(100))
    monkeypatch.setattr(World, "seed_dropout", lambda world, seed: torch.manual_seed(next(seeds)))
    found = trainers.check(train.DRY, CPU, tmp_path)
    assert found == dict.fromkeys(("ranker", "draft", "hstu-ranker", "hstu-next"), 0.0)
    rows = trainers.measure(train.DRY, trainers.DRY, CPU, 1e12)
    names = ("", ", large", ", on the CPU")
    assert set(rows) == {f"{model}{name}" for model in ("hstu-ranker", "hstu-next") for name in names}
    assert all(row["operations_per_second"] > 0 and row["events"] > 0 for row in rows.values())


@pytest.mark.parametrize("made", ["of_ratings", "of_next"])
def test_a_training_that_is_wrong_on_the_device_fails_the_checks(made, tmp_path, monkeypatch):
    """Its first weights are others there."""
    torch.set_num_threads(1)
    right, begun = getattr(trainers, made), []

    def learns_otherwise(*given):
        events, model, settings = right(*given)
        if not begun:
            model.of_code.weight.data += torch.randn_like(model.of_code.weight)
        begun.append(model)
        return events, model, settings

    monkeypatch.setattr(trainers, made, learns_otherwise)
    with pytest.raises(AssertionError, match=r"losses \["):
        trainers.check(train.DRY, CPU, tmp_path)


def test_operations_of_an_update_by_hand():
    """Three passes of the layers' five square matrices, of causal attention, and of scores of all items."""
    _, model, _ = trainers.of_next(train.DRY, trainers.TINY, CPU)
    done = trainers.operations(model, np.array([8, 8]))
    assert done == 3 * 2 * (16 * 5 * 16 * 16 + 16 * 2 * 8 * 8 + 16 * train.DRY.items * 16)
