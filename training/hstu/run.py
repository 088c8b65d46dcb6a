"""An HSTU ranker while it is trained: rows by id in dynamic tables over ranks, all else alike on every rank."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from genrec.errors import InputError
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_attention import hstu_attention
from training.balance import assign
from training.embedding.optimizers import RowAdam
from training.hstu.batches import (
    Batches,
    Known,
    Sample,
    TrainingSamples,
    events_of,
    held_out_samples,
    tokens_of,
)
from training.hstu.measure import gauc_name, gaucs, scores_of, users_name
from training.hstu.ratings import Ratings, held_of
from training.hstu.rows import PLAIN, RowsById
from training.hstu.settings import HstuSettings
from training.run import MOMENTS, Pace, Run
from training.sharded.world import World

# Users, how many events one needs, and how many where none has those
VALIDATION_USERS, VALIDATION_EVENTS, FEWEST = 1000, 40, 4
WARM_UP_STEPS = 100
LEAST_RATE = 0.01  # of the learning rate, at the end


def attend_in_fp32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Attention of products in bf16: our operation is of fp32 alone."""
    return hstu_attention(q.float(), k.float(), v.float(), *rest)


class HstuRun(Run[HstuRanker]):
    """A `training.loop.Task`."""

    name = "hstu"
    warm_up = WARM_UP_STEPS

    def __init__(
        self, world: World, ratings: Ratings, model: HstuRanker, settings: HstuSettings, seed: int
    ) -> None:
        self.ratings, self.settings, self.seed, self.events = ratings, settings, seed, len(ratings.items)
        average = copy.deepcopy(model).eval()
        adam = RowAdam(settings.learning_rate, 1e-8, *MOMENTS, settings.weight_decay, settings.averaging)
        self.rows = RowsById(world, model.config.hidden_size, adam, seed, settings.hot_every)
        for name in PLAIN.values():
            getattr(average, name).requires_grad_(False)  # rows are averaged where they lie
            delattr(model, name)
        model.by_id = self.rows  # type: ignore[method-assign]
        if settings.bf16:
            for layer in model.layers:
                layer.attend = attend_in_fp32
        pace = Pace(
            settings.learning_rate, settings.weight_decay, settings.averaging, self.warm_up, LEAST_RATE
        )
        super().__init__(world, model, average, pace, self.rows.embeddings)
        self._choose_validation()

    def _choose_validation(self) -> None:
        """Users whose events before those held out are not trained on. Raises InputError."""
        ratings, lengths = self.ratings, np.diff(self.ratings.offsets)
        least = VALIDATION_EVENTS if lengths.max() >= VALIDATION_EVENTS else FEWEST
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(lengths >= least))[:VALIDATION_USERS]
        chosen.sort()
        held = ratings.held
        self.checked = held_out_samples(ratings, chosen, held[chosen], self.model.config.max_history)
        self.ends = ratings.offsets[1:] - held
        self.ends[chosen] -= held_of(lengths - held)[chosen]
        events = events_of(self.checked) if self.checked else np.zeros(0, np.int64)
        if not gaucs(ratings, events, np.zeros((len(events), len(ratings.tasks))))[
            users_name(ratings.tasks[0])
        ]:
            problem = (
                f"have no user with one of {ratings.tasks[0]} or more and a lower one among those held out"
            )
            raise InputError("ratings", problem, "users on whom the best epoch can be chosen")

    def batches(self, epoch: int) -> Batches:
        """Each is of one update. Drawn from seed and epoch alone: alike on all ranks, and when a training goes on."""
        draw, ratings = np.random.default_rng([self.seed, epoch]), self.ratings
        samples = TrainingSamples(ratings.offsets, self.ends, self.model.config.max_history, draw)
        tokens = self.settings.tokens * self.settings.accumulate
        return Batches(samples, ratings.features.shape[1], tokens, draw)

    def step(self, batch: list[Sample], done: float) -> float:
        """One update, by the ranks' shares of a batch, each in `accumulate` parts. Returns the loss of all."""
        self.model.train()
        ranks, parts = self.world.ranks, self.settings.accumulate
        sizes = np.array([each.size(self.ratings.features.shape[1]) for each in batch], np.float64)
        owners = assign(sizes, ranks * parts)
        draw = np.random.default_rng([self.seed, self.steps, len(batch)])  # alike on all ranks
        known = Known.but(self.settings.unknown, len(batch), draw)
        for part in range(parts):
            places = np.flatnonzero(owners == part * ranks + self.world.rank)
            mine = [batch[at] for at in places]
            loss = self._loss(mine, Known(*(each[places] for each in known)))
            self.update.add(loss, sum(len(each.asked) for each in mine))
        return self.learn(done)

    def _loss(self, samples: list[Sample], known: Known) -> torch.Tensor | None:
        """Summed over candidates, of tasks the mean; a rank without samples only helps the others look up."""
        if not samples:
            none = torch.zeros(0, dtype=torch.int64)
            self.rows(none, none)
            return None
        device = self.world.device
        with torch.autocast(device.type, torch.bfloat16) if self.settings.bf16 else nullcontext():
            logits = self.model(tokens_of(self.ratings, samples, known).to(device)).float()
        labels = torch.from_numpy(self.ratings.labels(events_of(samples))).float().to(device)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[1]

    def validate(self) -> tuple[float, dict[str, Any]]:
        """GAUC of the averaged weights; every rank scores its part of the users."""
        self.fill_average()
        part = np.array_split(np.arange(len(self.checked)), self.world.ranks)[self.world.rank]
        scores = np.zeros((0, len(self.ratings.tasks)), np.float32)
        if len(part):
            samples = self.checked[part[0] : part[-1] + 1]
            scores = scores_of(self.average, self.ratings, samples, "validate")
        figures = gaucs(self.ratings, events_of(self.checked), self.world.gather_rows(scores))
        return figures[gauc_name(self.ratings.tasks[0])], figures

    def fill_average(self) -> None:
        """Its plain tables hold the averaged rows of all ranks then. All ranks call it."""
        self.rows.average_into(self.average)
