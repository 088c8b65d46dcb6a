"""Train an HSTU ranker on a data set's ratings, and measure it (MTGR; MTGRBoost, section 6.1).

    genrec train artifacts/ml-1m --recipe hstu-ranker
    genrec evaluate artifacts/ml-1m --recipe hstu-ranker

Two tasks, rating 4 or more and rating 5, by binary cross-entropy. The ten newest ratings of every user are held out.
What is kept is the moving average of the weights at the best GAUC on the ten before those, of some users, whose ten are
not trained on.
"""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu import TASKS, HstuConfig, HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.rank.hstu import FEATURES
from training.gauc import gauc
from training.hstu_batches import (
    Known,
    Sample,
    batches_of,
    held_out_samples,
    ratings_of,
    tokens_of,
    training_samples,
)
from training.rating_baselines import biased_factors, item_rates
from training.ratings import HELD_OUT, Ratings, load_ratings
from training.updates import cosine, follow, update
from training.windows import whole_share

VALIDATION_USERS, VALIDATION_EVENTS = 1000, 40  # users, and how many events one needs at least
WARM_UP_STEPS = 100
LEAST_RATE = 0.01  # of the learning rate, at the end
BATCH_TOKENS = 16384  # where nothing is learnt


@dataclass(frozen=True)
class HstuSettings:
    """How an HSTU ranker is trained; chosen on validation users."""

    epochs: int = 12
    patience: int = 3  # validations without a better GAUC before it stops
    tokens: int = 8192  # of a batch
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    averaging: float = 0.995
    unknown: float = (
        0.1  # share of samples without features, without ratings, without times, as requests may be
    )


class HstuRun:
    """A ranker, its optimiser and its averaged copy."""

    def __init__(self, model: HstuRanker, settings: HstuSettings) -> None:
        self.model, self.settings, self.steps = model, settings, 0
        self.average = copy.deepcopy(model).eval()
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() == 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay},
             {"params": vectors, "weight_decay": 0.0}],
            lr=settings.learning_rate, betas=(0.9, 0.98), fused=True,
        )  # fmt: skip

    def step(self, ratings: Ratings, samples: list[Sample], done: float, rng: np.random.Generator) -> float:
        """One update; `done` in 0..1 is the place on the cosine, `rng` draws what is unknown. Returns the loss."""
        known = Known.but(self.settings.unknown, len(samples), rng)
        logits = self.model(tokens_of(ratings, samples, known))
        labels = torch.from_numpy(labels_of(ratings_of(ratings, samples))).float()
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        rate = self.settings.learning_rate * cosine(self.steps, WARM_UP_STEPS, done, LEAST_RATE)
        update(self.optimiser, loss, [rate, rate])
        self.steps += 1
        follow(self.average, self.model, self.settings.averaging, self.steps)
        return float(loss.detach())


def labels_of(ratings: np.ndarray) -> np.ndarray:
    """bool[n, tasks] of ratings int64[n]."""
    return ratings[:, None] >= np.array(TASKS)


@torch.no_grad()
def scores_of(model: HstuRanker, ratings: Ratings, samples: list[Sample], label: str) -> np.ndarray:
    """Logits float32[C, tasks] of all candidates of samples, in their order."""
    found = []
    with tqdm(total=len(samples), unit="user", desc=label, delay=2) as bar:
        for batch in batches_of(samples, ratings.features.shape[1], BATCH_TOKENS):
            found.append(model(tokens_of(ratings, batch)).numpy())
            bar.update(len(batch))
    return np.concatenate(found)


def gaucs(ratings: Ratings, events: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """GAUC of every task, of scores float[n, tasks] of `events` int64[n]; and over how many users of the first."""
    users, labels = ratings.users[events], labels_of(ratings.ratings[events])
    each = [gauc(users, labels[:, task], scores[:, task]) for task in range(len(TASKS))]
    return {f"GAUC r>={least}": value for least, (value, _) in zip(TASKS, each, strict=True)} | {
        f"users r>={least}": users for least, (_, users) in zip(TASKS, each, strict=True)
    }


def train_hstu(
    ratings: Ratings, model: HstuRanker, settings: HstuSettings, seed: int = 0, minutes: float | None = None
) -> tuple[HstuRanker, dict[str, object]]:
    """Returns the average at the best validation, and what happened."""
    run, rng = HstuRun(model, settings), np.random.default_rng(seed)
    budget = math.inf if minutes is None else 60 * minutes
    long = np.flatnonzero(np.diff(ratings.offsets) >= VALIDATION_EVENTS)
    chosen = np.sort(np.random.default_rng(0).permutation(long)[:VALIDATION_USERS])
    checked = held_out_samples(ratings, chosen, HELD_OUT, model.config.max_history)
    checked_events = np.concatenate([each.asked for each in checked])
    ends = ratings.offsets[1:] - HELD_OUT
    ends[chosen] -= HELD_OUT
    best, stale, kept, log, begun = -1.0, 0, copy.deepcopy(run.average), [], time.monotonic()
    with tqdm(
        total=settings.epochs * len(ratings.items), unit="event", unit_scale=True, desc="train hstu"
    ) as bar:
        for epoch in range(settings.epochs):
            model.train()
            samples = training_samples(ratings.offsets, ends, model.config.max_history, rng)
            todo = list(batches_of(samples, ratings.features.shape[1], settings.tokens, rng))
            total, spent = 0.0, 0.0
            for number, batch in enumerate(todo, 1):
                spent = time.monotonic() - begun
                done = max((epoch + (number - 1) / len(todo)) / settings.epochs, spent / budget)
                total += run.step(ratings, batch, min(done, 1.0), rng)
                bar.update(whole_share(len(ratings.items), number, len(todo)))
                bar.set_postfix(loss=f"{total / number:.4f}", best=f"{best:.4f}", refresh=False)
                if spent >= budget:
                    break
            figures = gaucs(ratings, checked_events, scores_of(run.average, ratings, checked, "validate"))
            log.append({"epoch": epoch + 1, "loss": total / number, **figures})
            stale += 1
            if figures[f"GAUC r>={TASKS[0]}"] > best:
                best, stale, kept = figures[f"GAUC r>={TASKS[0]}"], 0, copy.deepcopy(run.average)
            if stale >= settings.patience or spent >= budget:
                break
    return kept, {"seed": seed, "log": log, "seconds": round(time.monotonic() - begun, 1)}


def hstu_artifact(
    artifact: Path, settings: HstuSettings, seed: int = 0, threads: int = 0, minutes: float | None = None
) -> dict[str, object]:
    """`artifact`/model/hstu.*. Returns what happened. Raises InputError, ArtifactError."""
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    ratings = load_ratings(artifact, catalogue)
    config = HstuConfig(len(catalogue), tuple(catalogue.codebook_sizes), ratings.sizes)
    model = HstuRanker(config, torch.from_numpy(catalogue.codes.astype(np.int64)))
    kept, report = train_hstu(ratings, model, settings, seed, minutes)
    save_hstu(kept, artifact / "model")
    (artifact / "model" / FEATURES).write_text(json.dumps(ratings.numbers, indent=2) + "\n")
    return report


def measure_hstu(artifact: Path) -> dict[str, dict[str, float]]:
    """GAUC of the held-out ratings of all users, of the model and of two baselines.

    Raises InputError, ArtifactError.
    """
    ratings = load_ratings(artifact, Catalogue.load(artifact / CATALOGUE, titles=False))
    model = load_hstu(artifact / "model")
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
