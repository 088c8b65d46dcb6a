"""An HSTU ranker trained on several ranks, ended and taken up: it ends where one whole training of one process does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec.engine.instructions import AVX512_BF16, features
from tests.training.hstu.test_hstu import fresh_model, some_ratings
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.hstu.train import train_hstu
from training.launch import on_ranks
from training.sharded.world import RankLost, World

SETTINGS = HstuSettings(epochs=3, patience=3, tokens=600, learning_rate=2e-3, averaging=0.9)
LAST_STEP = 11  # before a rank is killed


def trained(
    world: World, folder: str, dropout: float = 0.0, killed: int | None = None, **other: Any
) -> dict[str, Any]:
    """The ranker's weights and the log; rank `killed` dies by SIGKILL after some steps."""
    if world.rank == killed:
        die_after(HstuRun, LAST_STEP)
    settings = replace(SETTINGS, **other)
    best, report = train_hstu(
        world, some_ratings(), fresh_model(dropout), settings, Path(folder), save_every_s=0.0
    )
    return {"weights": {name: each.numpy() for name, each in best.state_dict().items()}, **report}


def die_after(kind: Any, steps: int) -> None:
    """A training of this kind, in this process alone, dies by SIGKILL after so many steps."""
    step = kind.step

    def last_step(run: Any, *arguments: Any) -> float:
        if run.steps == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(run, *arguments)

    kind.step = last_step


def assert_equal(ours: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    assert [each["epoch"] for each in ours["log"]] == [each["epoch"] for each in wanted["log"]]
    for mine, theirs in zip(ours["log"], wanted["log"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=max(tolerance, 1e-9))
    for name, weight in wanted["weights"].items():
        np.testing.assert_allclose(ours["weights"][name], weight, tolerance, tolerance, err_msg=name)


def test_two_ranks_end_where_one_ends(tmp_path: Path) -> None:
    alone = trained(World(), str(tmp_path / "alone"))
    two = on_ranks(2, trained, str(tmp_path / "two"), threads=2)
    assert alone["resumed_after_step"] == two["resumed_after_step"] == 0 and two["ranks"] == 2
    assert all(alone["weights"][name][1:].any(1).all() for name in ("of_item.weight", "of_feature.weight"))
    assert_equal(two, alone, 2e-4)


def test_killed_and_taken_up_nothing_differs(tmp_path: Path) -> None:
    assert_taken_up(trained, tmp_path, LAST_STEP)


def assert_taken_up(trained: Callable[..., dict[str, Any]], folder: Path, step: int) -> None:
    """With dropout, whose chance is part of the checkpoint. The death of a rank ends the others with its reason."""
    whole = on_ranks(2, trained, str(folder / "whole"), 0.2, threads=2)
    with pytest.raises(RankLost, match=r"rank 1 of the training died of signal 9 \(SIGKILL\)"):
        on_ranks(2, trained, str(folder / "killed"), 0.2, 1, threads=2)
    rest = on_ranks(2, trained, str(folder / "killed"), 0.2, threads=2)
    assert rest["resumed_after_step"] == step
    assert_equal(rest, whole, 0.0)


def test_one_process_takes_up_what_two_began(tmp_path: Path) -> None:
    alone = trained(World(), str(tmp_path / "alone"))
    with pytest.raises(RankLost):
        on_ranks(2, trained, str(tmp_path / "killed"), 0.0, 0, threads=2)
    rest = trained(World(), str(tmp_path / "killed"))
    assert rest["resumed_after_step"] == LAST_STEP
    assert_equal(rest, alone, 2e-4)


def test_accumulated_batches_are_one_update(tmp_path: Path) -> None:
    whole = trained(World(), str(tmp_path / "whole"))
    parts = trained(World(), str(tmp_path / "parts"), tokens=SETTINGS.tokens // 3, accumulate=3)
    assert_equal(parts, whole, 2e-4)


@pytest.mark.parametrize("other", [{"hot_every": 1}, {"bf16": True}], ids=["cold rows", "bf16"])
def test_less_precision_learns_nearly_the_same(tmp_path: Path, other: dict[str, Any]) -> None:
    if "bf16" in other and not features() >= AVX512_BF16:
        pytest.skip("this CPU has no bf16")
    whole = trained(World(), str(tmp_path / "whole"))
    less = trained(World(), str(tmp_path / "less"), **other)
    for mine, theirs in zip(less["log"], whole["log"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.005)
    assert less["log"][-1]["loss"] != whole["log"][-1]["loss"]
