"""Train the generator further: from the weights that it has, on events that came since.

    genrec train artifacts/ml-1m --events monday.csv tuesday.csv

Every event of the last file is predicted once, from what its user did before; all that came before is history. So that
what was learnt before is not forgotten, REPLAY times as many older events, of users drawn at random, are learnt again
between them. Semantic IDs stay as they are. There is no validation, and Adam begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.checkpoint import WEIGHTS, load_generator, save_generator
from genrec.nn.model import Generator
from training.data.events import Events, read_events, who_came
from training.data.windows import batches, gather, recent
from training.further import Further, before_file, behind_others, learn_last, once, tell_users
from training.generator.recipes import Recipe
from training.generator.run import WindowRun, pace_of
from training.run import Model, Pace
from training.sharded.world import World

GENERATOR = Further("train", "generator", WEIGHTS)
# Older events per new one: on ml-100k lists got worse with none, stayed with 3 and got better with 10.
REPLAY = 10


@dataclass(frozen=True, eq=False)
class Newer:
    """Histories of users, one after the other, oldest first: `rows` int64[total] of the catalogue, `offsets`
    int64[U + 1]; `learnt` int64[n], ascending, says which of them are to be learnt, none a user's first.
    """

    rows: np.ndarray
    offsets: np.ndarray
    learnt: np.ndarray

    @property
    def users(self) -> np.ndarray:
        """Of every event that is to be learnt its user: int64[n]."""
        return np.searchsorted(self.offsets, self.learnt, "right") - 1

    def and_older(self, older: Newer) -> Newer:
        """These histories, then those; what is to be learnt of both."""
        return Newer(
            np.concatenate((self.rows, older.rows)),
            np.concatenate((self.offsets, len(self.rows) + older.offsets[1:])),
            np.concatenate((self.learnt, len(self.rows) + older.learnt)),
        )


class FurtherRun(WindowRun[Model]):
    """Once over some events, from a model's weights. A window is its start, its stop and its first event to learn."""

    def __init__(
        self, world: World, model: Model, generator: Generator, pace: Pace, catalogue: Catalogue, newer: Newer,
        batch_items: int, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(world, model, generator, pace, catalogue, newer.rows, seed)
        self.newer, self.batch_items = newer, batch_items
        self.is_learnt = np.zeros(len(newer.rows), bool)
        self.is_learnt[newer.learnt] = True

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Windows int64[w, 3] of one update each."""
        size, offsets = self.generator.config.max_history, self.newer.offsets
        windows = [
            (max(int(offsets[user]), int(asked[-1]) + 1 - size), int(asked[-1]) + 1, int(asked[0]))
            for user, asked in recent(offsets, self.newer.learnt, size)
        ]
        draw = np.random.default_rng([self.seed, epoch])
        return batches(np.array(windows), self.batch_items, draw)

    def asked(self, windows: np.ndarray) -> np.ndarray:
        """Events to be learnt, each in one window alone: bool[b, n]."""
        event = gather(np.arange(len(self.rows)), windows)
        return (event >= windows[:, 2:]) & self.is_learnt[event]


class GeneratorRun(FurtherRun[Generator]):
    """All of a generator learns."""

    name = "generator"

    def __init__(
        self, world: World, model: Generator, settings: Recipe, catalogue: Catalogue, newer: Newer, seed: int
    ) -> None:  # fmt: skip
        super().__init__(world, model, model, pace_of(settings), catalogue, newer, settings.batch_items, seed)


def train_further(
    world: World, model: Generator, catalogue: Catalogue, newer: Newer, older: Newer, settings: Recipe, seed: int = 0
) -> tuple[Generator, dict[str, Any]]:  # fmt: skip
    """Returns the average, and what happened. All ranks call it, with the same model. Raises RankLost."""
    run = GeneratorRun(world, model.to(world.device), settings, catalogue, newer.and_older(older), seed)
    report = once(run, newer.users)
    return run.average, {**report, "replayed": len(older.learnt)}


def load_newer(artifact: Path, catalogue: Catalogue, files: Sequence[Events]) -> Newer:
    """Histories of the users of the last of `files`, whose events are learnt; those of the data set and of the
    files before are history alone. Raises InputError, ArtifactError.
    """
    of, learnt = behind_others(artifact, files)
    return Newer(catalogue.rows_of(of.item), of.offsets, learnt)


def load_older(artifact: Path, catalogue: Catalogue, files: Sequence[Events], count: int, seed: int) -> Newer:
    """About `count` events from before the last of `files`: see `before_file`. Raises ArtifactError."""
    of, learnt = before_file(artifact, files, count, seed)
    return Newer(catalogue.rows_of(of.item), of.offsets, learnt)


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: Recipe, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/ trained further on the last file of `events`; see `training.further.learn_last`."""

    def learn() -> tuple[Callable[[Path], None], dict[str, Any]]:
        catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
        files, model = read_events(artifact, events), load_generator(artifact / "model")
        tell_users(world, who_came(artifact, files))
        newer = load_newer(artifact, catalogue, files)
        older = load_older(artifact, catalogue, files, REPLAY * len(newer.learnt), seed)
        kept, report = train_further(world, model, catalogue, newer, older, settings, seed)
        return partial(save_generator, kept), report

    return learn_last(world, artifact, GENERATOR, events, learn)
