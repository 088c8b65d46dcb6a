"""An HSTU model of the next item while it is trained: every event of a window predicts the one behind it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from genrec.nn.hstu_next import HstuNext, vectors
from genrec.nn.whole_softmax import whole_softmax_loss
from training.balance import assign
from training.generator.evaluate import metrics
from training.hstu_next.batches import events_of, groups_of, places_in, training_spans
from training.hstu_next.measure import KS, ranks_of
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed
from training.ranker.candidates import places_of
from training.run import Pace, Run
from training.sharded.world import World

VALIDATION_USERS = 2000  # at most; the same ones every time
WARM_UP_STEPS = 100
LEAST_RATE = 0.01  # of the learning rate, at the end


class SpanRun(Run[HstuNext]):
    """Updates by spans [start, stop) of events. All weights are alike on all ranks, rows of items too."""

    name = "hstu-next"
    warm_up = WARM_UP_STEPS

    def __init__(
        self, world: World, timed: Timed, model: HstuNext, settings: HstuNextSettings, seed: int
    ) -> None:
        pace = Pace(
            settings.learning_rate, settings.weight_decay, settings.averaging, self.warm_up, LEAST_RATE
        )
        super().__init__(world, model, copy.deepcopy(model).eval(), pace)
        self.timed, self.settings, self.seed = timed, settings, seed

    def asked(self, spans: np.ndarray) -> np.ndarray:
        """Which events of spans int64[w, 2 or more] are asked for the one behind them: bool[T]."""
        return np.ones(int((spans[:, 1] - spans[:, 0]).sum()), bool)

    def step(self, batch: np.ndarray, done: float) -> float:
        """One update by the ranks' shares of a batch. Returns the loss."""
        self.model.train()
        lengths = (batch[:, 1] - batch[:, 0]).astype(np.float64)
        mine = batch[assign(lengths, self.world.ranks) == self.world.rank]
        asked = np.flatnonzero(self.asked(mine))
        self.update.add(self._loss(mine, asked) if len(mine) else None, len(asked))
        return self.learn(done)

    def _loss(self, spans: np.ndarray, asked: np.ndarray) -> torch.Tensor:
        """Summed over the events that are `asked`, int64[n] of those of `spans`."""
        rows, device = self.model.rows(), self.world.device
        states = self.model.states(events_of(self.timed, spans).to(device), rows)
        states = states[torch.from_numpy(asked).to(device)]
        wanted = torch.from_numpy(self.timed.rows[places_in(spans)[0][asked] + 1]).to(device)
        return whole_softmax_loss(states, vectors(rows), wanted, self.model.config.temperature)


class HstuNextRun(SpanRun):
    """A `training.loop.Task`."""

    def __init__(
        self, world: World, timed: Timed, model: HstuNext, settings: HstuNextSettings, seed: int
    ) -> None:
        super().__init__(world, timed, model, settings, seed)
        self.events = int(np.maximum(timed.lengths - 2, 0).sum())
        places = places_of(timed.lengths, "validation", 0)
        chosen = np.random.default_rng(0).permutation(len(places))[:VALIDATION_USERS]
        self.checked = places[np.sort(chosen)]

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Spans int64[w, 2] of one update each, drawn from seed and epoch alone."""
        draw = np.random.default_rng([self.seed, epoch])
        spans = training_spans(self.timed, self.settings.max_history, draw)
        return groups_of(spans, self.settings.tokens, draw)

    def validate(self) -> tuple[float, dict[str, Any]]:
        """NDCG@10 of the averaged weights over the whole catalogue; every rank asks for its part of the users."""
        mine = np.array_split(self.checked, self.world.ranks)[self.world.rank]
        found = self.world.gather_rows(ranks_of(self.average, self.timed, mine, "validate"))
        figures = metrics(found, KS)
        return figures["NDCG@10"], {"users": len(found), **figures}
