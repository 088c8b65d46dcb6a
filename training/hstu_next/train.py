"""Train HSTU for the next item (Zhai et al. 2024), which ranks candidates by which of them comes next.

    genrec train artifacts/ml-1m --recipe hstu-next --ranks 2
    genrec evaluate artifacts/ml-1m --recipe hstu-next

What is kept is the moving average of the weights at the best validation NDCG@10 over the whole catalogue.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import save_hstu
from genrec.nn.hstu_next import HstuNext
from training.hstu_next.run import HstuNextRun
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed, load_timed
from training.loop import SAVE_EVERY_S, Limits, train
from training.sharded.world import World

NO_TIMES = (
    "histories.parquet has no times: only places in a history count. `genrec data` keeps those of interactions"
    " that have timestamps; run it again if it ran before it did"
)


def train_hstu_next(
    world: World, timed: Timed, model: HstuNext, settings: HstuNextSettings, state: Path, seed: int = 0,
    minutes: float | None = None, save_every_s: float = SAVE_EVERY_S,
) -> tuple[HstuNext, dict[str, object]]:  # fmt: skip
    """Returns the average at the best validation, and what happened; goes on from the checkpoint in `state`.

    All ranks call it, with the same model. Raises RankLost, ArtifactError.
    """
    run = HstuNextRun(world, timed, model.to(world.device), settings, seed)
    world.seed_dropout(seed)
    limits = Limits(settings.epochs, settings.patience, minutes, settings.validate_every)
    report = train(world, run, limits, state, save_every_s)
    return run.best, {"seed": seed, **report}


def fresh_model(catalogue: Catalogue, settings: HstuNextSettings, seed: int) -> HstuNext:
    """One that has learnt nothing: the same for a seed."""
    torch.manual_seed(seed)
    config = settings.model(len(catalogue), tuple(catalogue.codebook_sizes))
    return HstuNext(config, torch.from_numpy(catalogue.codes.astype(np.int64)))


def hstu_next_artifact(
    world: World, artifact: Path, settings: HstuNextSettings, state: Path, seed: int = 0,
    minutes: float | None = None,
) -> dict[str, object]:  # fmt: skip
    """`artifact`/model/hstu_next.*. Returns what happened. All ranks call it.

    Goes on from the checkpoint in `state`. Raises InputError, ArtifactError, RankLost.
    """
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    timed = load_timed(artifact, catalogue)
    if not timed.known and world.rank == 0:
        print(NO_TIMES, flush=True)
    model = fresh_model(catalogue, settings, seed)
    best, report = train_hstu_next(world, timed, model, settings, state, seed, minutes)
    if world.rank == 0:
        save_hstu(best, artifact / "model")
    return report
