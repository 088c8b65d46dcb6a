"""How good an HSTU ranker is: GAUC of ratings that were held out, beside two baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.manifest import anew
from genrec.nn.device import device_of
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.progress import counting
from genrec.rank.hstu import CONFIG
from genrec.rank.user_features import load_numbers
from training.hstu.baselines import biased_factors, item_rates
from training.hstu.batches import Batches, Sample, held_out_samples, tokens_of
from training.hstu.gauc import gauc
from training.hstu.ratings import HELD_OUT, Ratings, load_ratings

BATCH_TOKENS = 16384


def gauc_name(least: int) -> str:
    """The figure of the task of ratings of at least `least`."""
    return f"GAUC r>={least}"


def users_name(least: int) -> str:
    """Over how many users it is."""
    return f"users r>={least}"


@torch.no_grad()
def scores_of(model: HstuRanker, ratings: Ratings, samples: list[Sample], label: str) -> np.ndarray:
    """Logits float32[C, tasks] of all candidates of samples, in their order."""
    found, device = [], device_of(model)
    with counting(label, len(samples), "user") as bar:
        for batch in Batches(samples, ratings.features.shape[1], BATCH_TOKENS):
            found.append(model(tokens_of(ratings, batch).to(device)).cpu().numpy())
            bar.update(len(batch))
    return np.concatenate(found)


def gaucs(ratings: Ratings, events: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """GAUC of every task, of scores float[n, tasks] of `events` int64[n]; and over how many users."""
    users, labels = ratings.users_of(events), ratings.labels(events)
    each = [gauc(users, labels[:, task], scores[:, task]) for task in range(len(ratings.tasks))]
    return {gauc_name(least): value for least, (value, _) in zip(ratings.tasks, each, strict=True)} | {
        users_name(least): users for least, (_, users) in zip(ratings.tasks, each, strict=True)
    }


def measure_hstu(artifact: Path, device: str = "cpu") -> dict[str, dict[str, float]]:
    """GAUC of the held-out ratings of all users, of the model, computed on `device`, and of two baselines.

    Raises InputError, ArtifactError.
    """
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    ratings = load_ratings(artifact, catalogue, numbers=load_numbers(artifact / "model"))
    model = load_hstu(artifact / "model").to(device)
    ratings = replace(ratings, tasks=model.config.tasks)
    if ratings.levels > model.config.ratings:
        problem = f"is of ratings to {model.config.ratings}, the data has {ratings.levels}"
        raise ArtifactError(artifact / "model" / CONFIG, f"{problem}{anew(artifact, 'hstu')}")
    samples = held_out_samples(ratings, np.arange(len(ratings)), 0, model.config.max_history)
    held = np.flatnonzero(ratings.held_out)
    factors = [gaucs(ratings, held, each) for each in biased_factors(ratings)]
    return {
        "item rates": gaucs(ratings, held, item_rates(ratings)),
        # Of each figure its best epoch on these very ratings: in the baseline's favour.
        "biased factors": {name: max(each[name] for each in factors) for name in factors[0]},
        "model": gaucs(ratings, held, scores_of(model, ratings, samples, "evaluate")),
    }


def hstu_table(figures: dict[str, dict[str, float]]) -> str:
    """The same for people."""
    model = figures["model"]
    names = [name for name in model if name.startswith(gauc_name(0)[:-1])]
    counts = ", ".join(f"{model[name]} ({name.split()[-1]})" for name in model if name not in names)
    lines = [
        f"the {HELD_OUT} newest ratings of every user, or half of fewer, held out; users with both labels: {counts}",
        f"{'':20}" + "".join(f"{name:>12}" for name in names),
    ]
    return "\n".join(
        lines + [f"{who:20}" + "".join(f"{of[n]:12.4f}" for n in names) for who, of in figures.items()]
    )
