"""Train a ranker further: from the weights that it has, over the generator as it is now, on events that came since.

    genrec train artifacts/ml-1m --ranker --events monday.csv tuesday.csv

Every event of the last file is a place, behind what its user did before: which of the generator's candidates was it?
REPLAY times as many older events, of users drawn at random, are learnt again between them. There is no validation, and
Adam begins anew.
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
from genrec.nn.checkpoint import generator_digest, load_generator
from genrec.nn.model import Generator
from genrec.nn.ranker import Ranker
from genrec.nn.ranker_checkpoint import load_ranker, save_ranker
from genrec.rank.options import WEIGHTS
from training.data.events import read_events, who_came
from training.further import Further, learn_last, once, tell_users
from training.generator.further import Newer, load_newer, load_older
from training.ranker.candidates import Candidates, make_candidates
from training.ranker.evaluate import Places
from training.ranker.run import PlacesRun, RankerSettings
from training.ranker.train import places_over
from training.sharded.world import World

RANKER = Further("ranker", "ranker", WEIGHTS)
REPLAY = 3  # older events per new one: for each the generator searches candidates


def train_further(
    world: World, ranker: Ranker, places: Places, learnt: Candidates, settings: RankerSettings, users: np.ndarray,
    seed: int = 0,
) -> tuple[Ranker, dict[str, Any]]:  # fmt: skip
    """`users` int64[n] are those of the new events. Returns the average, and what happened.

    All ranks call it, with the same ranker. Raises RankLost.
    """
    run = PlacesRun(world, ranker.to(world.device), places, learnt, settings, seed)
    return run.average, once(run, users)


def places_learnt(newer: Newer) -> tuple[list[np.ndarray], np.ndarray]:
    """Catalogue rows of every user's known items, and (user, cut) int64[m, 2] of the events that are learnt, shortest
    first.
    """
    known = newer.rows >= 0
    before = np.concatenate(([0], np.cumsum(known)))  # known ones, in all
    rows = np.split(newer.rows[known], before[newer.offsets[1:-1]])
    learnt = replace(newer, learnt=newer.learnt[known[newer.learnt]])
    cut = before[learnt.learnt] - before[newer.offsets[learnt.users]]
    found = np.stack((learnt.users, cut), 1)[cut > 0]
    return rows, found[np.argsort(found[:, 1], kind="stable")]


def candidates_of(
    world: World, generator: Generator, catalogue: Catalogue, rows: list[np.ndarray], places: np.ndarray
) -> Candidates:
    """Of `places` int64[m, 2], alike on all ranks, each of which makes every so many."""
    shares = [np.arange(rank, len(places), world.ranks) for rank in range(world.ranks)]
    mine = places[shares[world.rank]]
    made = make_candidates(generator, catalogue, rows, mine, "candidates", world.rank > 0)
    gathered = Candidates(*(world.gather_rows(each) for each in vars(made).values()))
    return gathered.at(np.argsort(np.concatenate(shares)))


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: RankerSettings, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/ranker.safetensors trained further on the last file of `events`; see
    `training.further.learn_last`.
    """
    model = artifact / "model"

    def learn() -> tuple[Callable[[Path], None], dict[str, Any]]:
        catalogue, files = Catalogue.load(artifact / CATALOGUE, titles=False), read_events(artifact, events)
        of, ranker = generator_digest(model), load_ranker(model, of_this=False)
        tell_users(world, who_came(artifact, files))
        newer = load_newer(artifact, catalogue, files)
        drawn = np.random.default_rng([seed, len(files)]).permutation(newer.learnt)[: settings.places]
        newer = replace(newer, learnt=np.sort(drawn))
        older = load_older(artifact, catalogue, files, REPLAY * len(newer.learnt), seed)
        rows, asked = places_learnt(newer.and_older(older))
        places = places_over(artifact, catalogue, rows, ranker.options.history)
        learnt = candidates_of(world, load_generator(model).to(world.device), catalogue, rows, asked)
        kept, report = train_further(world, ranker, places, learnt, settings, newer.users, seed)
        return partial(save_ranker, kept, generator=of), {**report, "replayed": len(older.learnt)}

    return learn_last(world, artifact, RANKER, events, learn)
