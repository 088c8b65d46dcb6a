"""The generator's trainer: teacher forcing over windows, cosine schedule, averaged weights, early stop, exact resume.

What is kept is the moving average of the weights at the best validation NDCG@10. An ended training goes on to the very
weights that it would have had.
"""

from __future__ import annotations

from pathlib import Path

import torch

from genrec.catalogue.items import Catalogue
from genrec.nn.model import Generator
from training.data.histories import Histories
from training.generator.recipes import Recipe
from training.generator.run import GeneratorRun
from training.loop import SAVE_EVERY_S, Limits, train
from training.sharded.world import World


def fresh_generator(
    settings: Recipe, catalogue: Catalogue, seed: int, codebooks: list[torch.Tensor]
) -> Generator:
    """As training begins: random, or with tokens that begin at what their codes stand for (`codebooks`, [T_l, d])."""
    torch.manual_seed(seed)
    model = Generator(settings.model(catalogue.codebook_sizes), settings.dropout)
    if codebooks:
        warm_start(model, codebooks, settings.warm_start, seed)
    return model


@torch.no_grad()
def warm_start(model: Generator, codebooks: list[torch.Tensor], size: float, seed: int) -> None:
    """Begin the tokens' embeddings and head rows at what their codes stand for: per level [T_l, d].

    A random projection keeps the geometry of the codebooks, so codes of like items start out alike, at
    once on both sides of the model; without it the first epochs are spent finding that out. `size` is the root mean
    square of what is added.
    """
    torch.manual_seed(seed)
    projection = torch.randn(codebooks[0].shape[1], model.config.hidden_size)
    for book, offset in zip(codebooks, model.config.code_offsets, strict=True):
        rows = book @ projection
        rows *= size / rows.pow(2).mean().sqrt().clamp(min=1e-9)
        for weight in (model.embed_tokens.weight, model.lm_head.weight):
            weight[offset : offset + len(book)] += rows


def train_generator(
    world: World, histories: Histories, catalogue: Catalogue, settings: Recipe, state: Path, seed: int = 0,
    minutes: float | None = None, codebooks: list[torch.Tensor] | None = None, save_every_s: float = SAVE_EVERY_S,
) -> tuple[Generator, dict[str, object]]:  # fmt: skip
    """Learn from `histories.cut(2)`. Returns the average at the best validation, and what happened.

    Goes on from the checkpoint in `state`. With `minutes` the schedule runs on the clock (at most `settings.epochs`);
    without, two runs of one seed and thread count end in the same weights. All ranks call it. Raises RankLost,
    ArtifactError.
    """
    model = fresh_generator(settings, catalogue, seed, codebooks or []).to(world.device)
    run = GeneratorRun(world, model, settings, catalogue, histories, seed)
    world.seed_dropout(seed)
    limits = Limits(settings.epochs, settings.patience, minutes, settings.validate_every)
    report = train(world, run, limits, state, save_every_s)
    return run.best, {"seed": seed, "settings": settings.as_json(), **report}
