"""How good an HSTU ranker is: GAUC of ratings that were held out, beside two baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.device import device_of
from genrec.nn.hstu import TASKS, HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.progress import counting
from training.gauc import gauc
from training.hstu_batches import Sample, batches_of, held_out_samples, tokens_of
from training.rating_baselines import biased_factors, item_rates
from training.ratings import HELD_OUT, Ratings, load_ratings

BATCH_TOKENS = 16384


def labels_of(ratings: np.ndarray) -> np.ndarray:
    """bool[n, tasks] of ratings int64[n]."""
    return ratings[:, None] >= np.array(TASKS)


@torch.no_grad()
def scores_of(model: HstuRanker, ratings: Ratings, samples: list[Sample], label: str) -> np.ndarray:
    """Logits float32[C, tasks] of all candidates of samples, in their order."""
    found, device = [], device_of(model)
    with counting(label, len(samples), "user") as bar:
        for batch in batches_of(samples, ratings.features.shape[1], BATCH_TOKENS):
            found.append(model(tokens_of(ratings, batch).to(device)).cpu().numpy())
            bar.update(len(batch))
    return np.concatenate(found)


def gaucs(ratings: Ratings, events: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """GAUC of every task, of scores float[n, tasks] of `events` int64[n]; and over how many users of the first."""
    users, labels = ratings.users[events], labels_of(ratings.ratings[events])
    each = [gauc(users, labels[:, task], scores[:, task]) for task in range(len(TASKS))]
    return {f"GAUC r>={least}": value for least, (value, _) in zip(TASKS, each, strict=True)} | {
        f"users r>={least}": users for least, (_, users) in zip(TASKS, each, strict=True)
    }


def measure_hstu(artifact: Path, device: str = "cpu") -> dict[str, dict[str, float]]:
    """GAUC of the held-out ratings of all users, of the model, computed on `device`, and of two baselines.

    Raises InputError, ArtifactError.
    """
    ratings = load_ratings(artifact, Catalogue.load(artifact / CATALOGUE, titles=False))
    model = load_hstu(artifact / "model").to(device)
    samples = held_out_samples(ratings, np.arange(len(ratings)), 0, model.config.max_history)
    held = np.flatnonzero(ratings.held_out)
    factors = [gaucs(ratings, held, each) for each in biased_factors(ratings, labels_of)]
    return {
        "item rates": gaucs(ratings, held, item_rates(ratings, labels_of)),
        # Of each figure its best epoch on these very ratings: in the baseline's favour.
        "biased factors": {name: max(each[name] for each in factors) for name in factors[0]},
        "model": gaucs(ratings, held, scores_of(model, ratings, samples, "evaluate")),
    }


def hstu_table(figures: dict[str, dict[str, float]]) -> str:
    """The same for people."""
    model = figures["model"]
    names = [f"GAUC r>={least}" for least in TASKS]
    counts = ", ".join(f"{model[f'users r>={least}']} (r>={least})" for least in TASKS)
    lines = [
        f"the {HELD_OUT} newest ratings of every user held out; users with both labels: {counts}",
        f"{'':20}" + "".join(f"{name:>12}" for name in names),
    ]
    return "\n".join(
        lines + [f"{who:20}" + "".join(f"{of[n]:12.4f}" for n in names) for who, of in figures.items()]
    )
