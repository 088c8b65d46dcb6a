"""A generator while it is trained: teacher forcing over windows of histories, validated by beam search."""

from __future__ import annotations

import copy

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.nn.beam import Tree
from genrec.nn.device import device_of
from genrec.nn.loss import level_sums, targets_of
from genrec.nn.model import Generator
from training.balance import assign
from training.data.histories import Histories
from training.data.windows import batches, cut_windows, gather, training_rows
from training.generator.evaluate import evaluate
from training.generator.recipes import Recipe
from training.generator.recommend import model_recommender
from training.run import Pace, Run
from training.sharded.world import World

VALIDATION_USERS = 2000  # at most; the same ones every time
VALIDATION_BEAMS = 32
WARM_UP_STEPS = 100
LEAST_RATE = 0.005  # of the learning rate, at the end


class WindowRun(Run[Generator]):
    """Updates by windows [start, stop) over `rows` int64[total], catalogue rows of histories one after the other."""

    name = "generator"

    def __init__(
        self, world: World, model: Generator, settings: Recipe, catalogue: Catalogue, rows: np.ndarray, seed: int
    ) -> None:  # fmt: skip
        pace = Pace(
            settings.learning_rate, settings.weight_decay, settings.averaging, WARM_UP_STEPS, LEAST_RATE
        )
        super().__init__(world, model, copy.deepcopy(model).eval(), pace)
        self.settings, self.seed, self.tree = settings, seed, Tree.of(catalogue).to(device_of(model))
        self.rows, self.events = rows, len(rows)

    def asked(self, windows: np.ndarray) -> np.ndarray:
        """Which items of windows int64[b, 2 or more] are predicted: bool[b, n]."""
        return gather(self.rows, windows) >= 0

    def step(self, batch: np.ndarray, done: float) -> float:
        """One update by the ranks' shares of a batch. Returns the loss, over all levels."""
        self.model.train()
        lengths = batch[:, 1] - batch[:, 0]
        mine = batch[assign(lengths.astype(np.float64), self.world.ranks) == self.world.rank]
        loss = None
        if len(mine):
            device = self.tree.codes.device
            picked = torch.from_numpy(gather(self.rows, mine)).to(device)
            asked = torch.from_numpy(self.asked(mine)).to(device)
            sums = level_sums(self.model, self.tree, picked.clamp(min=0), asked)
            # Of every level the mean over what the whole batch has of it; an update is divided by the windows of all.
            targets = targets_of(torch.from_numpy(self.asked(batch)), len(sums)).to(device)
            loss = (sums / targets).sum() * len(batch)
        self.update.add(loss, len(mine))
        return self.learn(done)


class GeneratorRun(WindowRun):
    """A `training.loop.Task`."""

    def __init__(
        self, world: World, model: Generator, settings: Recipe, catalogue: Catalogue, histories: Histories, seed: int
    ) -> None:  # fmt: skip
        rows, self.offsets = training_rows(histories.cut(2), catalogue.rows_of)
        super().__init__(world, model, settings, catalogue, rows, seed)
        self.checked = histories.sample(VALIDATION_USERS, seed=0)
        self.recommend = model_recommender(self.average, catalogue, VALIDATION_BEAMS, self.tree)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Windows int64[w, 2] of one update each, drawn from seed and epoch alone."""
        draw = np.random.default_rng([self.seed, epoch])
        windows = cut_windows(self.offsets, self.settings.max_history, draw)
        return batches(windows, self.settings.batch_items, draw)

    def validate(self) -> tuple[float, dict[str, object]]:
        """NDCG@10 of the averaged weights; every rank asks for its part of the users."""
        mine = self.checked.of(np.arange(self.world.rank, len(self.checked), self.world.ranks))
        figures = evaluate(self.recommend, mine, "validation", label="validate") if len(mine) else {}
        names = ("HR@5", "HR@10", "NDCG@5", "NDCG@10")
        told = self.world.gather(np.array([len(mine), *(float(str(figures.get(n, 0))) for n in names)]))
        users = told[:, 0].sum()
        means = dict(zip(names, (told[:, 1:] * told[:, :1]).sum(0) / users, strict=True))
        return float(means["NDCG@10"]), {"users": int(users)} | {n: float(v) for n, v in means.items()}
