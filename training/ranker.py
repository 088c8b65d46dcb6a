"""Train a ranker on the generator's own candidates (BAT, section 4): which of them did the user take?

    genrec train artifacts/ml-1m --ranker

The loss has two parts: the item taken, and the generator's order, of which a click alone says too little. By default
the generator stays as it is and discriminant tokens have layers of their own. What is kept is the moving average of
the weights at the best validation; what the generator's log-probability counts beside the scores is chosen there too.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.nn.checkpoint import load_generator
from genrec.nn.ranker import Ranker
from genrec.nn.ranker_checkpoint import save_ranker
from genrec.rank.item_tokens import item_tokens
from genrec.rank.options import RankerConfig
from training.data import Histories
from training.rank_candidates import Candidates, known_rows, load_candidates
from training.rank_evaluate import Places, choose_weight, scores_of
from training.updates import cosine, follow, update

VALIDATION_USERS = 2000
WARM_UP_STEPS = 50
LEAST_RATE = 0.02  # of the learning rate, at the end


@dataclass(frozen=True)
class RankerSettings:
    """How a ranker is trained; chosen on validation items."""

    places: int = 145_000  # of training in all, about, and at least one of every history
    epochs: int = 2  # twice over more places is better than four times over a quarter of them
    patience: int = 2  # validations without a better NDCG@10 before it stops
    negatives: int = 31  # of a place, drawn anew from its candidates
    batch: int = 32  # places
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    averaging: float = 0.995
    dropout: float = 0.2  # of the layers that learn
    teacher: float = 1.0  # weight of the generator's order in the loss


class RankerRun:
    """A ranker, its optimiser and the average of what learns."""

    def __init__(self, ranker: Ranker, settings: RankerSettings, seed: int) -> None:
        self.ranker, self.settings, self.steps = ranker, settings, 0
        self.rng = np.random.default_rng(seed)
        self.average = copy.deepcopy(ranker).eval()
        learning = [p for p in ranker.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": [p for p in learning if p.dim() > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in learning if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate, betas=(0.9, 0.98), fused=True,
        )  # fmt: skip

    def step(self, places: Places, entries: Tensor | None, picked: Candidates, done: float) -> float:
        """One update on some places; `done` in 0..1 is the place on the cosine. Returns the loss."""
        orders = self.ranker.options.orders
        order = orders[int(self.rng.integers(len(orders)))]
        rows, teacher = draw(picked, self.settings.negatives, self.rng)
        asked = places.ask(picked, rows)
        scores = asked.scores(self.ranker, order, entries).masked_fill(torch.from_numpy(rows < 0), -1e9)
        wanted = torch.zeros(len(rows), dtype=torch.long)
        loss = F.cross_entropy(scores, wanted)
        loss = loss + self.settings.teacher * F.cross_entropy(scores, torch.from_numpy(teacher).softmax(1))
        rate = self.settings.learning_rate * cosine(self.steps, WARM_UP_STEPS, done, LEAST_RATE)
        update(self.optimiser, loss, [rate, rate])
        self.steps += 1
        follow(self.average, self.ranker, self.settings.averaging, self.steps)
        return float(loss.detach())


def draw(picked: Candidates, negatives: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The target and some of the other candidates: rows int64[B, 1 + negatives], -1 padded, and log-probabilities.

    The target comes first: no order lets a score depend on its place. One that the generator did not find is taken to
    be a little less likely than all it found.
    """
    wanted = picked.target[:, None]
    found, real = picked.rows == wanted, picked.rows >= 0
    lottery = np.where(real & ~found, rng.random(picked.rows.shape), 2)
    others = lottery.argsort(1)[:, :negatives]
    least = np.where(real, picked.scores, np.inf).min(1, initial=0) - 1
    of_target = np.where(found.any(1), np.where(found, picked.scores, -np.inf).max(1), least)
    valid = np.take_along_axis(lottery, others, 1) < 2
    rows = np.where(valid, np.take_along_axis(picked.rows, others, 1), -1)
    scores = np.where(valid, np.take_along_axis(picked.scores, others, 1), -np.inf)
    return (
        np.concatenate((wanted, rows), 1).astype(np.int64),
        np.concatenate((of_target[:, None], scores), 1).astype(np.float32),
    )


def shuffled_batches(lengths: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Numbers of places in batches of like length (ties at random), in random order: prompts pad little."""
    order = np.lexsort((rng.random(len(lengths)), lengths))
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    rng.shuffle(groups)  # type: ignore[arg-type]
    return groups


def train_ranker(
    ranker: Ranker,
    places: Places,
    candidates: dict[str, Candidates],
    settings: RankerSettings,
    seed: int = 0,
    minutes: float | None = None,
) -> tuple[Ranker, dict[str, object]]:
    """Learn from the places of `candidates["train"]`. Returns the average at the best validation, and what happened."""
    run, train = RankerRun(ranker, settings, seed), candidates["train"]
    budget = math.inf if minutes is None else 60 * minutes
    sample = np.random.default_rng(0).permutation(len(candidates["validation"]))[:VALIDATION_USERS]
    check = candidates["validation"].at(np.sort(sample))
    lengths = np.minimum(train.cut, places.most)
    best, stale, kept, log = -1.0, 0, copy.deepcopy(run.average), []
    begun = time.monotonic()
    entries = places.entries(ranker) if ranker.shared else None
    with tqdm(total=settings.epochs * len(train), unit="place", desc="train ranker") as bar:
        for epoch in range(settings.epochs):
            ranker.train()
            ranker.generator.train(not ranker.shared)  # a frozen generator does not drop anything
            todo, total = shuffled_batches(lengths, settings.batch, run.rng), 0.0
            for number, picked in enumerate(todo):
                spent = time.monotonic() - begun
                done = max((epoch + number / len(todo)) / settings.epochs, spent / budget)
                total += run.step(places, entries, train.at(picked), min(done, 1.0))
                bar.update(len(picked))
                bar.set_postfix(loss=f"{total / (number + 1):.3f}", best=f"{best:.4f}", refresh=False)
                if spent >= budget:
                    break
            scored = {order: scores_of(run.average, places, check, order) for order in ranker.options.orders}
            weight, figures = choose_weight(check, scored)
            log.append(
                {"epoch": epoch + 1, "loss": total / (number + 1), "generator_weight": weight, **figures}
            )
            stale += 1
            if figures["NDCG@10"] > best:
                best, stale, kept = figures["NDCG@10"], 0, copy.deepcopy(run.average)
            if stale >= settings.patience or time.monotonic() - begun >= budget:
                break
    whole = {
        order: scores_of(kept, places, candidates["validation"], order) for order in ranker.options.orders
    }
    weight, figures = choose_weight(candidates["validation"], whole)
    kept.options = replace(ranker.options, generator_weight=weight)
    seconds = round(time.monotonic() - begun, 1)
    return kept, {
        "seed": seed,
        "log": log,
        "validation": figures,
        "generator_weight": weight,
        "seconds": seconds,
    }


def fresh_ranker(
    artifact: Path, order: str, shared: bool, dropout: float, tokens: int, seed: int, history: str = "codes"
) -> Ranker:
    """A ranker over the generator in `artifact`/model, as training begins with it."""
    torch.manual_seed(seed)
    generator = load_generator(artifact / "model")
    ranker = Ranker(generator, shared, 0.0 if shared else dropout)
    ranker.options = RankerConfig(shared, order, tokens, history=history)
    for layer in ranker.layers():
        layer.drop.p = dropout
    return ranker


def ranker_artifact(
    artifact: Path, settings: RankerSettings, order: str = "split", shared: bool = True, seed: int = 0,
    threads: int = 0, minutes: float | None = None, history: str = "codes",
) -> dict[str, object]:  # fmt: skip
    """Give the generator in `artifact`/model a ranker beside it. Returns what happened. Raises ArtifactError."""
    if threads:
        torch.set_num_threads(threads)
    load_config(artifact).check_codes_alone("a ranker")
    places, candidates = open_places(artifact, settings.places, history)
    ranker = fresh_ranker(artifact, order, shared, settings.dropout, places.tokens.shape[1], seed, history)
    kept, report = train_ranker(ranker, places, candidates, settings, seed, minutes)
    save_ranker(kept, artifact / "model")
    return report


def open_places(
    artifact: Path, wanted: int = RankerSettings.places, history: str = "codes"
) -> tuple[Places, dict[str, Candidates]]:
    """Histories and items as a ranker reads them, and candidates by split, about `wanted` of training.

    `history` as in `RankerConfig`.
    Raises ArtifactError.
    """
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    histories, config = (
        Histories.load(artifact / "histories.parquet"),
        load_generator(artifact / "model").config,
    )
    candidates = load_candidates(artifact, max(1, wanted // len(histories)))
    codes = catalogue.codes + np.array(config.code_offsets)
    rows = known_rows(histories, catalogue)
    tokens = item_tokens(artifact, catalogue, config)
    return Places(
        rows, codes, tokens, tokens if history == "tokens" else codes, config.max_history
    ), candidates
