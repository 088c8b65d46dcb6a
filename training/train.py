"""The trainer: teacher forcing over windows, cosine schedule, averaged weights, early stop, exact resume.

What is saved is the moving average of the weights at the best validation NDCG@10. A checkpoint after each
epoch (safetensors and JSON) lets an interrupted run go on to the very weights it would have had.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.files import read_json
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import WEIGHTS, save_generator
from genrec.nn.loss import level_losses
from genrec.nn.model import Generator
from training.data import Histories
from training.evaluate import evaluate
from training.recipes import Recipe
from training.recommend import model_recommender
from training.updates import cosine, follow, update
from training.windows import batches, cut_windows, gather, training_rows, whole_share

VALIDATION_USERS = 2000  # at most; the same ones every time
VALIDATION_BEAMS = 32
WARM_UP_STEPS = 100
LEAST_RATE = 0.005  # of the learning rate, at the end
STATE, PROGRESS = "state.safetensors", "progress.json"


@dataclass
class Progress:
    """Where a run stands: everything but tensors."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    best: float = -1.0
    best_epoch: int = 0
    stale: int = 0
    log: list[dict[str, object]] = field(default_factory=list)


class Run:
    """A generator, its optimiser and its averaged copy, which all move together."""

    def __init__(self, settings: Recipe, catalogue: Catalogue, seed: int, data: str) -> None:
        torch.manual_seed(seed)
        self.settings, self.seed, self.data, self.at = settings, seed, data, Progress()
        self.tree = Tree.of(catalogue)
        self.model = Generator(settings.model(catalogue.codebook_sizes), settings.dropout)
        self.average = copy.deepcopy(self.model).eval()
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}]
        groups += [{"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=True)

    def warm_start(self, codebooks: list[torch.Tensor]) -> None:
        """Begin the tokens' embeddings and head rows at what their codes stand for: per level [T_l, d].

        A random projection keeps the geometry of the codebooks, so codes of like items start out alike, at
        once on both sides of the model; without it the first epochs are spent finding that out.
        """
        torch.manual_seed(self.seed)
        projection = torch.randn(codebooks[0].shape[1], self.model.config.hidden_size)
        offsets = self.model.config.code_offsets
        with torch.no_grad():
            for book, offset in zip(codebooks, offsets, strict=True):
                rows = book @ projection
                rows *= self.settings.warm_start / rows.pow(2).mean().sqrt().clamp(min=1e-9)
                for weight in (self.model.embed_tokens.weight, self.model.lm_head.weight):
                    weight[offset : offset + len(book)] += rows
        self.average.load_state_dict(self.model.state_dict())

    def step(self, picked: torch.Tensor, done: float) -> torch.Tensor:
        """One update on rows [B, n], -1 padded; `done` in 0..1 is the place on the cosine. Level losses [L]."""
        losses = level_losses(self.model, self.tree, picked.clamp(min=0), picked >= 0)
        rate = self.settings.learning_rate * cosine(self.at.step, WARM_UP_STEPS, done, LEAST_RATE)
        update(self.optimiser, losses.sum(), [rate] * len(self.optimiser.param_groups))
        self.at.step += 1
        follow(self.average, self.model, self.settings.averaging, self.at.step)
        return losses.detach()

    def epoch(self, rows: np.ndarray, offsets: np.ndarray, budget: float, bar: tqdm) -> float:
        """One pass over item `rows` int64[total], or until `budget` seconds are spent. Returns the mean loss."""
        started, settings = time.monotonic(), self.settings
        # Seeds depend on the epoch alone, so a resumed run draws what an uninterrupted one would.
        rng = np.random.default_rng([self.seed, self.at.epoch])
        torch.manual_seed(self.seed * 1_000_003 + self.at.epoch + 1)
        todo = batches(cut_windows(offsets, settings.max_history, rng), settings.batch_items, rng)
        total, number = torch.zeros(self.model.config.levels), 0
        self.model.train()
        for number, batch in enumerate(todo, 1):
            spent = self.at.seconds + time.monotonic() - started
            done = max((self.at.epoch + (number - 1) / len(todo)) / settings.epochs, spent / budget)
            total += self.step(torch.from_numpy(gather(rows, batch)), done)
            bar.update(whole_share(len(rows), number, len(todo)))
            if number % 20 == 0:
                bar.set_postfix(loss=f"{float(total.sum()) / number:.3f}", best=f"{self.at.best:.4f}")
            if spent >= budget:
                break
        self.at.epoch += 1
        self.at.seconds += time.monotonic() - started
        return float(total.sum()) / max(number, 1)

    def improved(self, figures: dict[str, object]) -> bool:
        """Log a validation; True when its NDCG@10 is the best so far."""
        at, value = self.at, float(str(figures["NDCG@10"]))
        at.log.append(figures)
        at.stale += 1
        if value > at.best:
            at.best, at.best_epoch, at.stale = value, at.epoch, 0
        return at.stale == 0

    def finished(self, budget: float) -> bool:
        """Out of epochs, of `budget` seconds, or of patience."""
        at, settings = self.at, self.settings
        return at.epoch >= settings.epochs or at.seconds >= budget or at.stale >= settings.patience

    def save(self, folder: Path) -> None:
        """Write the checkpoint; the JSON is renamed into place last, so a torn write is never resumed."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{k}": v for k, v in moments.items()}
        save_file(tensors, folder / f"{self.at.epoch}.{STATE}")
        (folder / "new.json").write_text(json.dumps({**self.identity(), **vars(self.at)}))
        os.replace(folder / "new.json", folder / PROGRESS)
        for old in folder.glob(f"*.{STATE}"):
            if old.name != f"{self.at.epoch}.{STATE}":
                old.unlink()

    def identity(self) -> dict[str, object]:
        """What must be equal for a checkpoint to be this run's."""
        sizes = list(self.model.config.codebook_sizes)
        return {"settings": self.settings.as_json(), "codebooks": sizes, "data": self.data, "seed": self.seed}

    def resume(self, folder: Path, weights: Path) -> bool:
        """Go on from the checkpoint in `folder`; False when there is none of these settings and data.

        Raises ArtifactError for one that is damaged.
        """
        if not (folder / PROGRESS).is_file():
            return False
        try:
            return self._resume(read_json(folder / PROGRESS), folder, weights)
        except (
            OSError,
            SafetensorError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RuntimeError,
        ) as error:
            problem = f"is not a readable checkpoint: {error}; without {folder} training begins anew"
            raise ArtifactError(folder / PROGRESS, problem) from error

    def _resume(self, saved: dict[str, Any], folder: Path, weights: Path) -> bool:
        mine = self.identity()
        if {k: saved.pop(k, None) for k in mine} != mine:
            return False
        if saved["best_epoch"] and not weights.is_file():
            return False  # the best weights of that run are gone
        self.at = Progress(**saved)
        tensors = load_file(folder / f"{self.at.epoch}.{STATE}")
        moments: dict[int, dict[str, torch.Tensor]] = {}
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "average": {}}
        for name, value in tensors.items():
            kind, rest = name.split(".", 1)
            if kind == "optimiser":
                index, moment = rest.split(".")
                moments.setdefault(int(index), {})[moment] = value
            else:
                parts[kind][rest] = value
        self.model.load_state_dict(parts["model"])
        self.average.load_state_dict(parts["average"])
        state = self.optimiser.state_dict()
        self.optimiser.load_state_dict({"state": moments, "param_groups": state["param_groups"]})
        return True


def fingerprint(*arrays: np.ndarray | torch.Tensor) -> str:
    """What a run learns from, as a hash."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def train(
    histories: Histories,
    catalogue: Catalogue,
    settings: Recipe,
    folder: Path,
    state: Path,
    seed: int = 0,
    threads: int = 0,
    minutes: float | None = None,
    resume: bool = False,
    codebooks: list[torch.Tensor] | None = None,
) -> dict[str, object]:
    """Train on `histories.cut(2)`; `folder` gets config.json and model.safetensors, `state` the checkpoint.

    `codebooks` (per level float32[T_l, d]) start the embeddings. `threads` 0 keeps torch's own choice.
    With `minutes` the schedule runs on the clock (at most `settings.epochs`); without, two runs of one seed
    and thread count end in the same weights. `resume` goes on from `state` if it is of the same settings,
    seed and data. Returns what happened, validation figures included.
    """
    if threads:
        torch.set_num_threads(threads)
    rows, offsets = training_rows(histories.cut(2), catalogue.rows_of)
    run = Run(settings, catalogue, seed, fingerprint(rows, offsets, catalogue.codes, *(codebooks or [])))
    if codebooks:
        run.warm_start(codebooks)
    resumed = resume and run.resume(state, folder / WEIGHTS)
    sample = histories.sample(VALIDATION_USERS, seed=0)
    recommend = model_recommender(run.average, catalogue, VALIDATION_BEAMS, run.tree)
    budget = math.inf if minutes is None else minutes * 60
    total = settings.epochs * len(rows)
    with tqdm(
        total=total, initial=run.at.epoch * len(rows), unit="item", unit_scale=True, desc="train"
    ) as bar:
        while not run.finished(budget):
            loss = run.epoch(rows, offsets, budget, bar)
            if run.at.epoch % settings.validate_every == 0 or run.finished(budget):
                started = time.monotonic()
                figures = evaluate(recommend, sample, "validation", label="validate")
                if run.improved({"epoch": run.at.epoch, "loss": loss, **figures}):
                    save_generator(run.average, folder)
                run.at.seconds += time.monotonic() - started
            run.save(state)
    return {"resumed": resumed, "settings": settings.as_json(), "seed": seed, **vars(run.at)}
