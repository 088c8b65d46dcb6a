"""The loop of a training over ranks: epochs and a budget, validation and patience, checkpoints to go on from.

What is trained is a `Task`; all ranks run the loop together. The clock is that of rank 0, so that all ranks stop and
save at the same step.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from genrec.errors import ArtifactError
from genrec.json_fields import made_of
from genrec.progress import counting
from training.data.windows import check_some
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.world import World
from training.shards import checkpoint

SAVE_EVERY_S = 60.0
PROGRESS = "progress"  # the name of `Progress` among a checkpoint's tensors: JSON as bytes


class Task(Protocol):
    """What is trained."""

    name: str
    events: int  # of an epoch, for the progress bar
    embeddings: ShardedEmbeddings

    def batches(self, epoch: int) -> Sequence[Any]:
        """The global batches of an epoch, alike on all ranks and at every call."""

    def step(self, batch: Any, done: float) -> float:
        """One update by a global batch; `done` in 0..1 is the place in the schedule. Returns the loss."""

    def validate(self) -> tuple[float, dict[str, Any]]:
        """How good it is now, the higher the better, and all figures; alike on all ranks."""

    def keep(self) -> None:
        """What `validate` measured last is the best so far."""

    def state(self) -> dict[str, torch.Tensor]:
        """All but rows and chance, for a checkpoint."""

    def take_up(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave."""


@dataclass(frozen=True)
class Limits:
    """When a training ends: after `epochs`, `patience` validations without a better one, or `minutes`."""

    epochs: int
    patience: int
    minutes: float | None = None
    validate_every: int = 1  # epochs

    @property
    def budget(self) -> float:
        """Seconds."""
        return math.inf if self.minutes is None else 60 * self.minutes


@dataclass
class Progress:
    """Where a training stands: everything but tensors."""

    epoch: int = 0
    batch: int = 0  # of the epoch, done
    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0  # sum over the epoch's batches
    best: float = -math.inf
    stale: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)

    def ended(self, limits: Limits) -> bool:
        """Out of epochs, of seconds, or of patience."""
        return self.epoch >= limits.epochs or self.seconds >= limits.budget or self.stale >= limits.patience


def train(
    world: World, task: Task, limits: Limits, folder: Path, save_every_s: float = SAVE_EVERY_S
) -> dict[str, Any]:
    """Train from the checkpoint in `folder`, or from the start where there is none. Returns what happened.

    Raises RankLost, ArtifactError, and InputError where there is nothing to learn.
    """
    at = _take_up(world, task, folder)
    resumed = at.step
    if resumed and world.rank == 0:
        print(f"{task.name}: goes on after step {at.step}, in epoch {at.epoch + 1}", flush=True)
    shown = {"initial": _place(task, limits, at), "disable": world.rank > 0}
    with counting(f"train {task.name}", limits.epochs * task.events, "event", **shown) as bar:
        while not at.ended(limits):
            mean = _epoch(world, task, limits, at, bar, folder, save_every_s)
            if at.epoch % limits.validate_every == 0 or at.ended(limits):
                _validate(world, task, at, mean)
            _save(world, task, at, folder)
    return {
        "log": at.log,
        "seconds": round(at.seconds, 1),
        "ranks": world.ranks,
        "resumed_after_step": resumed,
    }


def _epoch(
    world: World, task: Task, limits: Limits, at: Progress, bar: Any, folder: Path, save_every_s: float
) -> float:
    """The batches of an epoch that are left, while the budget lasts. Returns the mean loss."""
    todo, before, begun = task.batches(at.epoch), at.seconds, time.monotonic()
    check_some(todo)
    saved = before
    if at.batch:  # done before this process began, so no part of its pace
        bar.initial = bar.n = _place(task, limits, at, len(todo))
    while at.batch < len(todo) and at.seconds < limits.budget:
        done = max((at.epoch + at.batch / len(todo)) / limits.epochs, at.seconds / limits.budget)
        at.loss += task.step(todo[at.batch], min(done, 1.0))
        at.batch += 1
        at.step += 1
        at.seconds = before + _lead_clock(world, begun)
        bar.update(_place(task, limits, at, len(todo)) - bar.n)
        best = {} if at.best == -math.inf else {"best": f"{at.best:.4f}"}
        bar.set_postfix(loss=f"{at.loss / at.batch:.4f}", **best, refresh=False)
        if at.seconds - saved >= save_every_s and at.batch < len(todo) and at.seconds < limits.budget:
            _save(world, task, at, folder)
            saved = at.seconds
    mean = at.loss / max(at.batch, 1)
    at.epoch, at.batch, at.loss = at.epoch + 1, 0, 0.0
    return mean


def _place(task: Task, limits: Limits, at: Progress, batches: int = 0) -> int:
    """Where the bar is, in events of all epochs: by the `batches` of this one, or by the clock if that is ahead."""
    by_clock = int(limits.epochs * task.events * min(at.seconds / limits.budget, 1.0))
    of_epoch = task.events * at.batch // batches if batches else 0
    return max(at.epoch * task.events + of_epoch, by_clock)


def _validate(world: World, task: Task, at: Progress, loss: float) -> None:
    begun = time.monotonic()
    value, figures = task.validate()
    at.log.append({"epoch": at.epoch, "loss": loss, **figures})
    at.stale += 1
    if value > at.best:
        at.best, at.stale = value, 0
        task.keep()
    at.seconds += _lead_clock(world, begun)


def _lead_clock(world: World, begun: float) -> float:
    """Seconds since `begun` as rank 0 counts them."""
    return float(world.gather(np.array([time.monotonic() - begun]))[0, 0])


def _save(world: World, task: Task, at: Progress, folder: Path) -> None:
    said = torch.frombuffer(bytearray(json.dumps(asdict(at)).encode()), dtype=torch.uint8)
    checkpoint.save(folder, world, task.embeddings, at.step, {}, {**task.state(), PROGRESS: said})


def _take_up(world: World, task: Task, folder: Path) -> Progress:
    """From the last whole checkpoint; what was killed before its first is cleared away."""
    if checkpoint.read_current(folder) is None:
        world.meet()
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        world.meet()
        return Progress()
    try:
        tensors = checkpoint.load(folder, world, task.embeddings).dense
        at = _progress(folder, tensors)
        task.take_up(tensors)
    except ArtifactError as error:
        raise ArtifactError(folder, f"{error}; without this folder it begins anew") from error
    world.meet()  # who read from a slower disk is no lost rank
    return at


def _progress(folder: Path, tensors: dict[str, torch.Tensor]) -> Progress:
    """Taken out of a checkpoint's tensors. Raises ArtifactError."""
    try:
        said = json.loads(tensors.pop(PROGRESS).numpy().tobytes())
    except (KeyError, TypeError, ValueError) as error:
        problem = f"has no progress of a training: {error!r}"
        raise ArtifactError(folder / checkpoint.CURRENT, problem) from error
    return made_of(Progress, said, folder / checkpoint.CURRENT)
