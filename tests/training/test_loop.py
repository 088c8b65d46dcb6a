"""What the loop's bar says, and how a budget of time is kept and spread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from genrec.progress import counting
from training import further, loop
from training.sharded.embeddings import ShardedEmbeddings
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


class Timed(Counted):
    """A step takes six seconds of the clock `now`; the one after `most` is interrupted."""

    embeddings = ShardedEmbeddings([], World())

    def __init__(self, most: int = 99) -> None:
        self.now, self.most, self.places = 0.0, most, list[float]()

    def step(self, batch: list[int], done: float) -> float:
        if len(self.places) == self.most:
            raise KeyboardInterrupt
        self.now += 6.0
        self.places.append(round(done, 6))
        return 1.0

    def validate(self) -> tuple[float, dict[str, Any]]:
        return 0.0, {}

    def keep(self) -> None:
        pass

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def take_up(self, tensors: dict[str, torch.Tensor]) -> None:
        pass


def trained(
    task: Timed, limits: loop.Limits, folder: Path, patch: pytest.MonkeyPatch, save_every_s: float = 0.0
) -> tuple[dict[str, Any], list[int]]:
    """The report, and after which steps it was saved."""
    saved, save = list[int](), loop._save

    def noted(world: World, task: Timed, at: loop.Progress, folder: Path) -> None:
        saved.append(at.step)
        save(world, task, at, folder)

    with patch.context() as patched:
        patched.setattr(loop, "time", SimpleNamespace(monotonic=lambda: task.now))
        patched.setattr(loop, "_save", noted)
        return loop.train(World(), task, limits, folder, save_every_s), saved


@pytest.mark.parametrize(
    ("epochs", "minutes", "places"),
    [
        (4, 1.0, [step / 10 for step in range(10)]),
        (2, 1.5, [step / 15 for step in range(15)]),
        (1, 9.0, [step / 10 for step in range(10)]),
    ],
)
def test_the_schedule_ends_with_the_budget_or_the_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int, minutes: float, places: list[float]
) -> None:
    """Else the rate of a training that has so many minutes would never have fallen."""
    task = Timed()
    report, _ = trained(task, loop.Limits(epochs, 9, minutes), tmp_path, monkeypatch)
    assert task.places == [round(place, 6) for place in places]
    assert report["seconds"] == 6 * len(places)
    assert [each["epoch"] for each in report["log"]] == list(range(1, 1 + -(-len(places) // 10)))


def test_the_bar_follows_the_clock_that_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its 1,000 epochs a training of two minutes seemed to take hours; so where it goes on, too."""
    bars = []

    @contextmanager
    def kept(*about: Any, **more: Any) -> Iterator[Any]:
        with counting(*about, **more) as bar:
            bars.append(bar)
            yield bar

    monkeypatch.setattr(loop, "counting", kept)
    limits = loop.Limits(epochs=1000, patience=9, minutes=2.0)
    with pytest.raises(KeyboardInterrupt):
        trained(Timed(most=15), limits, tmp_path, monkeypatch)
    trained(Timed(), limits, tmp_path, monkeypatch)
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [
        (0, 75_000, 100_000),
        (75_000, 100_000, 100_000),
    ]


def test_time_before_an_interruption_is_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = loop.Limits(epochs=4, patience=9, minutes=1.5)
    with pytest.raises(KeyboardInterrupt):
        trained(Timed(most=12), limits, tmp_path, monkeypatch)
    report, _ = trained(rest := Timed(), limits, tmp_path, monkeypatch)
    assert (report["resumed_after_step"], report["seconds"]) == (12, 90)
    assert rest.places == [0.8, round(13 / 15, 6), round(14 / 15, 6)]


@pytest.mark.parametrize(("every_s", "steps"), [(0.0, [*range(1, 11)]), (20.0, [4, 8, 10]), (60.0, [10])])
def test_it_is_saved_every_so_often_and_once_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, steps: list[int]
) -> None:
    for minutes in (None, 1.0):
        limits = loop.Limits(epochs=1, patience=9, minutes=minutes)
        assert trained(Timed(), limits, tmp_path / str(minutes), monkeypatch, every_s)[1] == steps


class Waits(World):
    """Notes how it waits: `meet` for long, all else for 45 s."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = list[str]()

    def meet(self) -> None:
        self.waited.append("meet")

    def swap(self, values: np.ndarray, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        self.waited.append("swap")
        return values


def test_a_rank_that_reads_longer_is_waited_for_where_a_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the data and its checkpoint: as where it begins."""
    limits = loop.Limits(epochs=1, patience=9)
    with pytest.raises(KeyboardInterrupt):
        trained(Timed(most=5), limits, tmp_path, monkeypatch)
    loop.train(world := Waits(), Timed(), limits, tmp_path)
    assert world.waited[0] == "meet"


def test_a_rank_that_reads_longer_is_waited_for_where_events_are_learnt() -> None:
    class Once(Timed):
        world, steps = Waits(), 10

        def step(self, batch: list[int], done: float) -> float:
            self.world.gather(np.zeros(1))
            return 1.0

    further.once(run := Once(), np.zeros(3))
    assert run.world.waited == ["meet", *["swap"] * 10]
