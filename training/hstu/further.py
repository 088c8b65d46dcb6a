"""Train an HSTU ranker further: from the weights that it has, on events that came since.

    genrec train artifacts/ml-1m --recipe hstu-ranker --events monday.csv tuesday.csv

The events of the last file are candidates, once each; all that came before is history. So that what was learnt before
is not forgotten, REPLAY times as many older events, of users drawn at random, are learnt again between them. There is
no validation, since the newest events are those to be learnt: what is kept is the moving average at the end. Adam
begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.manifest import anew
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.rank.hstu import CONFIG, WEIGHTS
from genrec.rank.user_features import load_numbers
from training.further import Further, check_new, learn_last, once, tell_users
from training.hstu.batches import Batches, further_samples
from training.hstu.ratings import Ratings, load_ratings
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.sharded.world import World

HSTU = Further("hstu", "HSTU ranker", WEIGHTS)
# Of the settings of a training in epochs, by which a file of 5,000 events would be three updates of hardly any rate.
RATE, BATCH = 1 / 2, 1 / 8
WARM_UP_STEPS = 10
# Older events per new one: on ml-100k one gained half of what two gain, none a third.
REPLAY = 2
OF_THE_MODEL = ("tasks", "experts")  # settings that a model has already


class FurtherRun(HstuRun):
    """Once over some events, from a model's weights."""

    warm_up = WARM_UP_STEPS

    def __init__(
        self, world: World, ratings: Ratings, learnt: np.ndarray, model: HstuRanker, settings: HstuSettings,
        seed: int,
    ) -> None:  # fmt: skip
        """`learnt` int64[n]: the events, ascending."""
        rate, tokens = RATE * settings.learning_rate, max(1, round(BATCH * settings.tokens))
        super().__init__(world, ratings, model, replace(settings, learning_rate=rate, tokens=tokens), seed)
        self.learnt = learnt
        self.rows.begin_with(self.average)

    def _choose_validation(self) -> None:
        """None: what is newest is to be learnt."""

    def batches(self, epoch: int) -> Batches:
        """See `HstuRun.batches`."""
        samples = further_samples(self.ratings, self.learnt, self.model.config.max_history)
        tokens = self.settings.tokens * self.settings.accumulate
        draw = np.random.default_rng([self.seed, epoch])
        return Batches(samples, self.ratings.features.shape[1], tokens, draw)

    def kept(self) -> HstuRanker:
        """The moving average, of rows too. All ranks call it."""
        self.fill_average()
        return self.average


def train_further(
    world: World, ratings: Ratings, learnt: np.ndarray, older: np.ndarray, model: HstuRanker, settings: HstuSettings,
    seed: int = 0,
) -> tuple[HstuRanker, dict[str, object]]:  # fmt: skip
    """On events `learnt` and `older`, int64[n] each, ascending, none in both. Returns the average, and what happened.

    All ranks call it, with the same model. Raises RankLost.
    """
    world.seed_dropout(seed)
    both = np.sort(np.concatenate((learnt, older)))
    run = FurtherRun(world, ratings, both, model.to(world.device), settings, seed)
    report = once(run, ratings.users_of(learnt))
    return run.kept(), {**report, "replayed": len(older)}


def newer_and_older(ratings: Ratings, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Events of file `number`, counted from 1, and about REPLAY times as many from before it: of users drawn at random
    all. int64[n] each, ascending; fewer older ones where there are no more.
    """
    learnt, later = (np.flatnonzero(each) for each in (ratings.file == number, ratings.file >= number))
    counts = np.diff(ratings.offsets) - np.bincount(ratings.users_of(later), minlength=len(ratings))
    order = np.random.default_rng([seed, number]).permutation(len(ratings))
    some = np.sort(order[: np.searchsorted(np.cumsum(counts[order]), REPLAY * len(learnt)) + 1])
    spans = zip(ratings.offsets[some].tolist(), ratings.offsets[some + 1].tolist(), strict=True)
    older = np.concatenate([np.arange(first, stop) for first, stop in spans])
    return learnt, older[ratings.file[older] < number]


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: HstuSettings, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/hstu.* trained further on the last file of `events`; see `training.further.learn_last`."""
    settings.check_on(world.device)

    def learn() -> tuple[Callable[[Path], None], dict[str, Any]]:
        catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
        numbers = load_numbers(artifact / "model")
        model, ratings = load_hstu(artifact / "model"), load_ratings(artifact, catalogue, events, numbers)
        tell_users(world, ratings.came)
        ratings = replace(ratings, tasks=model.config.tasks)
        _check(artifact, model, catalogue, ratings)
        _check_settings(model, settings)
        learnt, older = newer_and_older(ratings, len(events), seed)
        check_new(learnt, events[-1])
        kept, report = train_further(world, ratings, learnt, older, model, settings, seed)
        return partial(save_hstu, kept), report

    return learn_last(world, artifact, HSTU, events, learn)


def _check_settings(model: HstuRanker, settings: HstuSettings) -> None:
    """Raises InputError for those of the model's shape that are others than the model has."""
    for name in OF_THE_MODEL:
        asked, there = getattr(settings, name), getattr(model.config, name)
        if asked and asked != there:  # none is also what nobody asked for
            told = [list(each) if isinstance(each, tuple) else each for each in (asked, there)]
            raise InputError(
                name, f"is {told[0]}, the model has {told[1]}", "what the model has, or not named"
            )


def _check(artifact: Path, model: HstuRanker, catalogue: Catalogue, ratings: Ratings) -> None:
    c, path = model.config, artifact / "model" / CONFIG
    there = (len(catalogue), tuple(catalogue.codebook_sizes), ratings.sizes, ratings.levels)
    if (c.items, c.codebook_sizes, c.features, c.ratings) != there:
        said = f"is of {c.items} items with codes {c.codebook_sizes}, {c.features} features and ratings to {c.ratings}"
        said += f"; the data has {there[0]}, {there[1]}, {there[2]} and {there[3]}"
        raise ArtifactError(path, f"{said}{anew(artifact, HSTU.stage)}")
    if not np.array_equal(model.codes[1:].numpy(), catalogue.codes + c.code_starts):
        problem = f"is of another catalogue than {CATALOGUE}: items have other codes"
        raise ArtifactError(path, f"{problem}{anew(artifact, HSTU.stage)}")
