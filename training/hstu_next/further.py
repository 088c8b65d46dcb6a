"""Train HSTU for the next item further: from the weights that it has, on events that came since.

    genrec train artifacts/ml-1m --recipe hstu-next --events monday.csv tuesday.csv

Every event of the last file is asked for once, of the one before it; all that came before is history. So that what was
learnt before is not forgotten, REPLAY times as many older events, of users drawn at random, are learnt again between
them. There is no validation, and Adam begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from torch import nn

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.manifest import anew
from genrec.nn.hstu_checkpoint import load_hstu_next, save_hstu
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import NEXT_CONFIG, NEXT_WEIGHTS
from training.data.events import Events, Merged, read_events, who_came
from training.data.histories import TIMES
from training.data.windows import recent
from training.further import Further, before_file, behind_others, learn_last, once, tell_users
from training.hstu_next.batches import groups_of, places_in
from training.hstu_next.run import SpanRun
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed
from training.sharded.world import World

HSTU_NEXT = Further("hstu-next", "HSTU model of the next item", NEXT_WEIGHTS)
# Of the settings of a training in epochs, and without dropout: events are met once.
RATE, BATCH = 1 / 3, 1 / 8
WARM_UP_STEPS = 10
REPLAY = 10  # older events per new one
NO_TIMES = "histories.parquet has no times, so those of the files say only which event is before which"


class Learnt(NamedTuple):
    """Histories, and which of their events are learnt: int64[n], ascending, none a user's first."""

    timed: Timed
    events: np.ndarray

    @property
    def users(self) -> np.ndarray:
        """int64[n]: whose each is."""
        return np.searchsorted(self.timed.offsets, self.events, "right") - 1

    def beside(self, other: Learnt) -> Learnt:
        """Both; who is in both is two users."""
        a, b, shift = self.timed, other.timed, len(self.timed.rows)
        offsets = np.concatenate((a.offsets, shift + b.offsets[1:]))
        timed = Timed(offsets, np.concatenate((a.rows, b.rows)), np.concatenate((a.times, b.times)))
        return Learnt(timed, np.concatenate((self.events, shift + other.events)))


class FurtherRun(SpanRun):
    """Once over some events, from a model's weights. A span is its start, its stop and its first event to learn."""

    warm_up = WARM_UP_STEPS

    def __init__(
        self, world: World, learnt: Learnt, model: HstuNext, settings: HstuNextSettings, seed: int
    ) -> None:
        rate, tokens = RATE * settings.learning_rate, max(1, round(BATCH * settings.tokens))
        super().__init__(
            world, learnt.timed, model, replace(settings, learning_rate=rate, tokens=tokens), seed
        )
        for each in self.model.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        self.learnt = learnt.events
        self.is_learnt = np.zeros(len(learnt.timed.rows), bool)
        self.is_learnt[learnt.events] = True

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Spans int64[w, 3] of one update each."""
        size, offsets = self.model.config.max_history, self.timed.offsets
        spans = [
            (max(int(offsets[user]), int(events[-1]) - size), int(events[-1]), int(events[0]))
            for user, events in recent(offsets, self.learnt, size)
        ]
        return groups_of(np.array(spans), self.settings.tokens, np.random.default_rng([self.seed, epoch]))

    def asked(self, spans: np.ndarray) -> np.ndarray:
        """See `SpanRun.asked`: those before events to be learnt, each in one span alone."""
        wanted = places_in(spans)[0] + 1
        return self.is_learnt[wanted] & (wanted >= np.repeat(spans[:, 2], spans[:, 1] - spans[:, 0]))


def train_further(
    world: World, newer: Learnt, older: Learnt, model: HstuNext, settings: HstuNextSettings, seed: int = 0
) -> tuple[HstuNext, dict[str, Any]]:
    """Returns the average, and what happened. All ranks call it, with the same model. Raises RankLost."""
    run = FurtherRun(world, newer.beside(older), model.to(world.device), settings, seed)
    report = once(run, newer.users)
    return run.average, {**report, "replayed": len(older.events)}


def load_newer(artifact: Path, catalogue: Catalogue, files: Sequence[Events]) -> Learnt:
    """See `behind_others`. Raises InputError, ArtifactError."""
    of, learnt = behind_others(artifact, files)
    return Learnt(_timed(artifact, catalogue, of), learnt)


def load_older(
    artifact: Path, catalogue: Catalogue, files: Sequence[Events], count: int, seed: int
) -> Learnt:
    """About `count` events from before the last of `files`: see `before_file`. Raises ArtifactError."""
    of, learnt = before_file(artifact, files, count, seed)
    return Learnt(_timed(artifact, catalogue, of), learnt)


def _timed(artifact: Path, catalogue: Catalogue, of: Merged) -> Timed:
    """Times of files are on the clock of the data set. A data set without times has taught the model none, and serving
    sends none: those of the files are for the order alone.
    """
    known = TIMES.name in pq.read_schema(check_regular(artifact / "histories.parquet")).names
    times = of.time if known else np.zeros_like(of.time)
    return Timed(of.offsets, catalogue.rows_of(of.item).astype(np.int64), times)


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: HstuNextSettings, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/hstu_next.* trained further on the last file of `events`; see `training.further.learn_last`."""

    def learn() -> tuple[Callable[[Path], None], dict[str, Any]]:
        catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
        model = load_hstu_next(artifact / "model")
        _check(artifact, model, catalogue)
        files = read_events(artifact, events)
        tell_users(world, who_came(artifact, files))
        newer = load_newer(artifact, catalogue, files)
        if not newer.timed.known and world.rank == 0:
            print(NO_TIMES, flush=True)
        older = load_older(artifact, catalogue, files, REPLAY * len(newer.events), seed)
        kept, report = train_further(world, newer, older, model, settings, seed)
        return partial(save_hstu, kept), report

    return learn_last(world, artifact, HSTU_NEXT, events, learn)


def _check(artifact: Path, model: HstuNext, catalogue: Catalogue) -> None:
    if not np.array_equal(model.codes.numpy(), catalogue.codes + model.config.code_starts):
        problem = f"is of another catalogue than {CATALOGUE}: items have other codes"
        raise ArtifactError(artifact / "model" / NEXT_CONFIG, f"{problem}{anew(artifact, HSTU_NEXT.stage)}")
