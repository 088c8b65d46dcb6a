"""An HSTU ranker trained on several ranks, ended and taken up: it ends where one whole training of one process does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec.errors import InputError
from tests.training.test_hstu import fresh_model, some_ratings
from training.hstu import train_hstu
from training.hstu_run import HstuRun, HstuSettings
from training.launch import on_ranks
from training.sharded.world import RankLost, World

SETTINGS = HstuSettings(epochs=3, patience=3, tokens=600, learning_rate=2e-3, averaging=0.9)
LAST_STEP = 11  # before a rank is killed


def trained(world: World, folder: str, dropout: float = 0.0, killed: int | None = None) -> dict[str, Any]:
    """The ranker's weights and the log; rank `killed` dies by SIGKILL after some steps."""
    if world.rank == killed:
        step = HstuRun.step

        def last_step(run: HstuRun, *arguments: Any) -> float:
            if run.steps == LAST_STEP:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(run, *arguments)

        HstuRun.step = last_step  # of this process alone, which dies
    best, report = train_hstu(
        world, some_ratings(), fresh_model(dropout), SETTINGS, Path(folder), save_every_s=0.0
    )
    return {"weights": {name: each.numpy() for name, each in best.state_dict().items()}, **report}


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
    assert alone["weights"]["of_item.weight"][1:].any(1).all()
    assert_equal(two, alone, 2e-4)


def test_killed_and_taken_up_nothing_differs(tmp_path: Path) -> None:
    """With dropout, whose chance is part of the checkpoint. The death of a rank ends the others with its reason."""
    whole = on_ranks(2, trained, str(tmp_path / "whole"), 0.2, threads=2)
    with pytest.raises(RankLost, match=r"rank 1 of the training died of signal 9 \(SIGKILL\)"):
        on_ranks(2, trained, str(tmp_path / "killed"), 0.2, 1, threads=2)
    rest = on_ranks(2, trained, str(tmp_path / "killed"), 0.2, threads=2)
    assert rest["resumed_after_step"] == LAST_STEP
    assert_equal(rest, whole, 0.0)


def refuses(world: World) -> None:
    if world.rank == 1:
        raise InputError("ratings", "are not at hand", "ml-100k")
    world.meet()


def breaks(world: World) -> None:
    raise LookupError("no such thing")


def test_one_process_takes_up_what_two_began(tmp_path: Path) -> None:
    alone = trained(World(), str(tmp_path / "alone"))
    with pytest.raises(RankLost):
        on_ranks(2, trained, str(tmp_path / "killed"), 0.0, 0, threads=2)
    rest = trained(World(), str(tmp_path / "killed"))
    assert rest["resumed_after_step"] == LAST_STEP
    assert_equal(rest, alone, 2e-4)


def test_what_a_rank_raises_is_told() -> None:
    with pytest.raises(InputError, match=r"ratings: are not at hand \(accepted: ml-100k\)"):
        on_ranks(2, refuses, threads=2)
    with pytest.raises(Exception, match=r"rank [01] failed: LookupError: no such thing"):
        on_ranks(2, breaks, threads=2)
