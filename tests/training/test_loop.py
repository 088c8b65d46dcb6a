"""What the loop's bar says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from genrec.progress import counting
from training import loop
from training.sharded.world import World


class Counted:
    """100 events in ten batches."""

    name, events = "counted", 100

    def batches(self, epoch: int) -> list[list[int]]:
        return [[number] for number in range(10)]

    def step(self, batch: list[int], done: float) -> float:
        return 1.0


def shown(at: loop.Progress, tmp_path: Path) -> tuple[int, int, str]:
    """What this run did of the bar, all that is done, and what is beside it, after an epoch."""
    with counting("train counted", Counted.events, "event") as bar:
        loop._epoch(
            World(), Counted(), loop.Limits(epochs=1, patience=1), at, bar, tmp_path, loop.SAVE_EVERY_S
        )
        return bar.n - bar.initial, bar.n, bar.postfix


@pytest.mark.parametrize(("batch", "own"), [(0, 100), (5, 50)])
def test_what_was_done_before_is_no_part_of_the_pace(tmp_path: Path, batch: int, own: int) -> None:
    assert shown(loop.Progress(batch=batch), tmp_path)[:2] == (own, 100)


@pytest.mark.parametrize(("best", "told"), [(-math.inf, "loss=1.0000"), (0.25, "best=0.2500, loss=1.0000")])
def test_the_best_is_told_once_there_is_one(tmp_path: Path, best: float, told: str) -> None:
    assert shown(loop.Progress(best=best), tmp_path)[2] == told
