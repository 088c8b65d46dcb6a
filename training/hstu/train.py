"""Train an HSTU ranker on a data set's ratings (MTGR; MTGRBoost, section 6.1).

    genrec train artifacts/ml-1m --recipe hstu-ranker --ranks 2
    genrec evaluate artifacts/ml-1m --recipe hstu-ranker

Tasks are whether a rating is at least so high, of 1 to 5 usually 4 and 5, by binary cross-entropy. The ten newest
ratings of every user are held out.
What is kept is the moving average of the weights at the best GAUC on the ten before those, of some users, whose ten are
not trained on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu import HstuConfig, HstuRanker
from genrec.nn.hstu_checkpoint import save_hstu
from genrec.rank.hstu import FEATURES
from training.hstu.ratings import Ratings, check_tasks, load_ratings
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.loop import SAVE_EVERY_S, Limits, train
from training.sharded.world import World


def train_hstu(
    world: World, ratings: Ratings, model: HstuRanker, settings: HstuSettings, state: Path, seed: int = 0,
    minutes: float | None = None, save_every_s: float = SAVE_EVERY_S,
) -> tuple[HstuRanker, dict[str, object]]:  # fmt: skip
    """Returns the average at the best validation, and what happened; goes on from the checkpoint in `state`.

    All ranks call it, with the same model. Raises RankLost, ArtifactError.
    """
    run = HstuRun(world, ratings, model.to(world.device), settings, seed)
    world.seed_dropout(seed)
    report = train(world, run, Limits(settings.epochs, settings.patience, minutes), state, save_every_s)
    (rows,) = run.embeddings.sharded.values()
    return run.best, {"seed": seed, **report, "bytes_per_key": round(rows.table.bytes_per_key, 1)}


def hstu_artifact(
    world: World,
    artifact: Path,
    settings: HstuSettings,
    state: Path,
    seed: int = 0,
    minutes: float | None = None,
) -> dict[str, object]:
    """`artifact`/model/hstu.*. Returns what happened. All ranks call it.

    Goes on from the checkpoint in `state`. Raises InputError, ArtifactError, RankLost.
    """
    settings.check_on(world.device)
    torch.manual_seed(seed)
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    ratings = load_ratings(artifact, catalogue)
    ratings = replace(ratings, tasks=settings.tasks or ratings.tasks)
    check_tasks(ratings)
    config = HstuConfig(
        len(catalogue),
        tuple(catalogue.codebook_sizes),
        ratings.sizes,
        ratings=ratings.levels,
        tasks=ratings.tasks,
        experts=settings.experts,
    )
    model = HstuRanker(config, torch.from_numpy(catalogue.codes.astype(np.int64)))
    best, report = train_hstu(world, ratings, model, settings, state, seed, minutes)
    if world.rank == 0:
        save_hstu(best, artifact / "model")
        (artifact / "model" / FEATURES).write_text(json.dumps(ratings.numbers, indent=2) + "\n")
    return report
