"""A generator while it is trained: teacher forcing over windows of histories, validated by beam search."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from genrec.catalogue.items import Catalogue
from genrec.nn.beam import Tree
from genrec.nn.device import device_of
from genrec.nn.loss import level_sums, targets_of
from genrec.nn.model import Generator
from training.balance import assign
from training.data.histories import Histories
from training.data.windows import batches, cut_windows, gather, training_rows
from training.generator.evaluate import Recommender, evaluate
from training.generator.recipes import Recipe
from training.generator.recommend import model_recommender
from training.run import Model, Pace, Run
from training.sharded.world import World

VALIDATION_USERS = 2000  # at most; the same ones every time
VALIDATION_BEAMS = 32
WARM_UP_STEPS = 100
LEAST_RATE = 0.005  # of the learning rate, at the end


class WindowRun(Run[Model]):
    """Updates by windows [start, stop) over `rows` int64[total], catalogue rows of histories one after the other.

    A `generator` reads them: the model, a part of it, or what it stands on.
    """

    def __init__(
        self, world: World, model: Model, generator: Generator, pace: Pace, catalogue: Catalogue, rows: np.ndarray,
        seed: int, shares: Mapping[nn.Module, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(world, model, copy.deepcopy(model).eval(), pace, shares=shares)
        self.generator, self.seed, self.tree = generator, seed, Tree.of(catalogue).to(device_of(model))
        self.rows, self.events = rows, len(rows)

    def asked(self, windows: np.ndarray) -> np.ndarray:
        """Which items of windows int64[b, 2 or more] are predicted: bool[b, n]."""
        return gather(self.rows, windows) >= 0

    def step(self, batch: np.ndarray, done: float) -> float:
        """One update by the ranks' shares of a batch. Returns the loss, over all levels."""
        self.model.train()
        lengths = batch[:, 1] - batch[:, 0]
        mine = np.flatnonzero(assign(lengths.astype(np.float64), self.world.ranks) == self.world.rank)
        # The loss is divided by what the whole batch has, an update by the windows of all.
        self.update.add(self.loss(batch, mine) * len(batch) if len(mine) else None, len(mine))
        return self.learn(done)

    def loss(self, batch: np.ndarray, mine: np.ndarray) -> Tensor:
        """The generator's, of windows `mine` int64[m]: summed over levels, of each the mean over the whole batch."""
        rows, asked = self.items_of(batch[mine])
        return (level_sums(self.generator, self.tree, rows, asked) / self.targets_of(batch)).sum()

    def items_of(self, windows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Catalogue rows int64[b, n], and which are predicted: bool[b, n]."""
        device = self.tree.codes.device
        rows = torch.from_numpy(gather(self.rows, windows)).to(device)
        return rows.clamp(min=0), torch.from_numpy(self.asked(windows)).to(device)

    def targets_of(self, batch: np.ndarray) -> Tensor:
        """How many codes of each level are predicted in a batch: int64[L]."""
        asked = torch.from_numpy(self.asked(batch)).to(self.tree.codes.device)
        return targets_of(asked, self.generator.config.levels)


class HistoryRun(WindowRun[Model]):
    """A `training.loop.Task`: all but the two newest items of `histories`; one `recommend`s where it is validated."""

    recommend: Recommender
    batch_items: int  # of an update, with padding

    def __init__(
        self, world: World, model: Model, generator: Generator, pace: Pace, catalogue: Catalogue,
        histories: Histories, seed: int, shares: Mapping[nn.Module, float] | None = None,
    ) -> None:  # fmt: skip
        rows, self.offsets = training_rows(histories.cut(2), catalogue.rows_of)
        super().__init__(world, model, generator, pace, catalogue, rows, seed, shares)
        self.checked = histories.sample(VALIDATION_USERS, seed=0)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Windows int64[w, 2] of one update each, drawn from seed and epoch alone."""
        draw = np.random.default_rng([self.seed, epoch])
        windows = cut_windows(self.offsets, self.generator.config.max_history, draw)
        return batches(windows, self.batch_items, draw)

    def validate(self) -> tuple[float, dict[str, object]]:
        """NDCG@10 of the averaged weights; every rank asks for its part of the users."""
        mine = self.checked.of(np.arange(self.world.rank, len(self.checked), self.world.ranks))
        figures = evaluate(self.recommend, mine, "validation", label="validate") if len(mine) else {}
        names = ("HR@5", "HR@10", "NDCG@5", "NDCG@10")
        mine_told = [len(mine), *(float(str(figures.get(n, 0))) for n in names)]
        told = self.world.gather_rows(np.array([mine_told]))
        users = told[:, 0].sum()
        means = dict(zip(names, (told[:, 1:] * told[:, :1]).sum(0) / users, strict=True))
        return float(means["NDCG@10"]), {"users": int(users)} | {n: float(v) for n, v in means.items()}


class GeneratorRun(HistoryRun[Generator]):
    """All of a generator learns."""

    name = "generator"

    def __init__(
        self, world: World, model: Generator, settings: Recipe, catalogue: Catalogue, histories: Histories, seed: int
    ) -> None:  # fmt: skip
        super().__init__(world, model, model, pace_of(settings), catalogue, histories, seed)
        self.settings, self.batch_items = settings, settings.batch_items
        self.recommend = model_recommender(self.average, catalogue, VALIDATION_BEAMS, self.tree)


def pace_of(settings: Recipe) -> Pace:
    """How fast a generator learns by a recipe."""
    return Pace(settings.learning_rate, settings.weight_decay, settings.averaging, WARM_UP_STEPS, LEAST_RATE)
