"""HSTU for the next item trained on several ranks, ended and taken up: it ends where one whole training does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.hstu.test_hstu_ranks import assert_equal, assert_taken_up, die_after
from tests.training.hstu_next.test_hstu_next import SETTINGS, fresh_model, some_timed
from training.hstu_next.run import HstuNextRun
from training.hstu_next.train import train_hstu_next
from training.launch import on_ranks
from training.sharded.world import World

QUICK = replace(SETTINGS, epochs=3, validate_every=1)
LAST_STEP = 6  # before a rank is killed


def trained(world: World, folder: str, dropout: float = 0.0, killed: int | None = None) -> dict[str, Any]:
    """The weights and the log; rank `killed` dies by SIGKILL after some steps."""
    if world.rank == killed:
        die_after(HstuNextRun, LAST_STEP)
    settings = replace(QUICK, dropout=dropout)
    best, report = train_hstu_next(
        world, some_timed(), fresh_model(settings), settings, Path(folder), save_every_s=0.0
    )
    return {"weights": {name: each.numpy() for name, each in best.state_dict().items()}, **report}


@pytest.mark.long
def test_two_ranks_end_where_one_ends(tmp_path: Path) -> None:
    alone = trained(World(), str(tmp_path / "alone"))
    two = on_ranks(2, trained, str(tmp_path / "two"), threads=2)
    assert two["ranks"] == 2
    assert_equal(two, alone, 2e-4)


@pytest.mark.long
def test_killed_and_taken_up_nothing_differs(tmp_path: Path) -> None:
    assert_taken_up(trained, tmp_path, LAST_STEP)
