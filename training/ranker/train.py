"""Train a ranker on the generator's own candidates (BAT, section 4): which of them did the user take?

    genrec train artifacts/ml-1m --ranker

By default the generator stays as it is and discriminant tokens have layers of their own. What is kept is the moving
average of the weights at the best validation; what the generator's log-probability counts beside the scores is chosen
there too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.nn.checkpoint import generator_digest, load_generator
from genrec.nn.ranker import Ranker
from genrec.nn.ranker_checkpoint import save_ranker
from genrec.rank.item_tokens import item_tokens
from genrec.rank.options import RankerConfig
from training.data.histories import Histories
from training.loop import SAVE_EVERY_S, Limits, train
from training.ranker.candidates import Candidates, known_rows, load_candidates
from training.ranker.evaluate import Places
from training.ranker.run import RankerRun, RankerSettings
from training.sharded.world import World


def train_ranker(
    world: World, ranker: Ranker, places: Places, candidates: dict[str, Candidates], settings: RankerSettings,
    state: Path, seed: int = 0, minutes: float | None = None, save_every_s: float = SAVE_EVERY_S,
) -> tuple[Ranker, dict[str, object]]:  # fmt: skip
    """Learn from the places of `candidates["train"]`. Returns the average at the best validation, and what happened.

    Goes on from the checkpoint in `state`. All ranks call it, with the same ranker. Raises RankLost, ArtifactError.
    """
    run = RankerRun(world, ranker.to(world.device), places, candidates, settings, seed)
    world.seed_dropout(seed)
    report = train(world, run, Limits(settings.epochs, settings.patience, minutes), state, save_every_s)
    weight, figures = run.choose(run.best, candidates["validation"])
    run.best.options = replace(ranker.options, generator_weight=weight)
    return run.best, {"seed": seed, **report, "validation": figures, "generator_weight": weight}


def fresh_ranker(
    artifact: Path, order: str, shared: bool, dropout: float, tokens: int, seed: int, history: str = "codes",
    reach: int = 0, layers: int = 0,
) -> Ranker:  # fmt: skip
    """A ranker over the generator in `artifact`/model, as training begins with it."""
    torch.manual_seed(seed)
    generator = load_generator(artifact / "model")
    ranker = Ranker(generator, shared, 0.0 if shared else dropout, layers)
    ranker.options = RankerConfig(shared, order, tokens, history=history, reach=reach, layers=layers)
    for layer in ranker.layers():
        layer.drop.p = dropout
    return ranker


def ranker_artifact(
    world: World, artifact: Path, settings: RankerSettings, state: Path, order: str = "split", shared: bool = True,
    seed: int = 0, minutes: float | None = None, history: str = "codes",
) -> dict[str, object]:  # fmt: skip
    """Give the generator in `artifact`/model a ranker beside it. Returns what happened. All ranks call it.

    Raises InputError, ArtifactError, RankLost.
    """
    check_layers(artifact, shared, settings)
    of = generator_digest(artifact / "model")  # another process may train it meanwhile
    with world.lead_first():
        places, candidates = open_places(artifact, settings.places, history, world.device)
    tokens = places.tokens.shape[1]
    ranker = fresh_ranker(
        artifact, order, shared, settings.dropout, tokens, seed, history, settings.reach, settings.layers
    )
    kept, report = train_ranker(world, ranker, places, candidates, settings, state, seed, minutes)
    if world.rank == 0:
        save_ranker(kept, artifact / "model", of)
    return report


def check_layers(artifact: Path, shared: bool, settings: RankerSettings) -> None:
    """Before candidates are made, which takes minutes. Raises InputError for layers that no such ranker has."""
    RankerConfig(shared, layers=settings.layers).first_layer(load_config(artifact))


def open_places(
    artifact: Path,
    wanted: int = RankerSettings.places,
    history: str = "codes",
    device: torch.device | str = "cpu",
) -> tuple[Places, dict[str, Candidates]]:
    """Histories and items as a ranker reads them, and candidates by split, about `wanted` of training, with 0 none that
    matter; they are made on `device` where there are none yet.

    `history` as in `RankerConfig`. Raises ArtifactError, and InputError for codes where the generator reads text too:
    its KV of a history is then not a ranker's.
    """
    if history == "codes":
        load_config(artifact).check_codes_alone(
            "a ranker with --ranker-history codes", "; or --ranker-history tokens"
        )
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    histories = Histories.load(artifact / "histories.parquet")
    per_history = max(1, wanted // len(histories)) if wanted else 0
    candidates = load_candidates(artifact, per_history, device)
    return places_over(artifact, catalogue, known_rows(histories, catalogue), history), candidates


def places_over(artifact: Path, catalogue: Catalogue, rows: list[np.ndarray], history: str) -> Places:
    """Histories of catalogue `rows` int64 per user, and items, as a ranker over the generator in `artifact` reads them.

    Raises ArtifactError.
    """
    config = load_config(artifact)
    codes, tokens = catalogue.codes + np.array(config.code_offsets), item_tokens(artifact, catalogue, config)
    return Places(rows, codes, tokens, tokens if history == "tokens" else codes, config.max_history)
