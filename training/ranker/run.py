"""A ranker while it is trained on the generator's candidates (BAT, section 4): which of them did the user take?

The loss has two parts: the item taken, and the generator's order, of which a click alone says too little. In order
`item` a user's tokens read 100 candidates first, and the ranking loses by it, unless it also learns from what the same
weights say in order `user`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from genrec.nn.ranker import Ranker
from genrec.rank.options import RankerConfig
from training.ranker.candidates import CANDIDATES, Candidates
from training.ranker.evaluate import Asked, Places, choose_weight, scores_of
from training.recipe_file import MOST_AVERAGING, check_least, check_within
from training.run import Pace, Run
from training.sharded.world import World

VALIDATION_USERS = 2000
WARM_UP_STEPS = 50
LEAST_RATE = 0.02  # of the learning rate, at the end
NOBODY = -1e9  # the score of no candidate


@dataclass(frozen=True)
class RankerSettings:
    """How a ranker is trained; chosen on validation items."""

    places: int = 145_000  # of training in all, about, and at least one of every history
    epochs: int = 2  # twice over more places is better than four times over a quarter of them
    patience: int = 2  # validations without a better NDCG@10 before it stops
    negatives: int = 31  # of a place, drawn anew from its candidates; in order `item` all of them
    batch: int = 32  # places
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    averaging: float = 0.995
    dropout: float = 0.2  # of the layers that learn
    reach: int = 0  # see `genrec.rank.options.RankerConfig`
    layers: int = 0  # likewise
    teacher: float = 1.0  # weight of the generator's order in the loss
    alike: float = 2.0  # and in order `item` of what the averaged weights say in order `user`

    def __post_init__(self) -> None:
        check_least(self, {"places": 1, "epochs": 1, "patience": 1, "negatives": 1, "batch": 1})
        check_within(
            self,
            {
                "learning_rate": 1, "weight_decay": 1, "averaging": MOST_AVERAGING, "dropout": 0.99,
                "teacher": 100, "alike": 100,
            },
        )  # fmt: skip
        RankerConfig(reach=self.reach, layers=self.layers)  # refuses what no ranker can have


class PlacesRun(Run[Ranker]):
    """Updates by places, of which the candidates are known."""

    name = "ranker"

    def __init__(
        self,
        world: World,
        ranker: Ranker,
        places: Places,
        learnt: Candidates,
        settings: RankerSettings,
        seed: int,
    ) -> None:
        pace = Pace(
            settings.learning_rate, settings.weight_decay, settings.averaging, WARM_UP_STEPS, LEAST_RATE
        )
        super().__init__(world, ranker, copy.deepcopy(ranker).eval(), pace)
        self.places, self.settings, self.seed, self.learnt = places, settings, seed, learnt
        self.entries = places.entries(ranker) if ranker.shared else None

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Numbers of places of one update each, drawn from seed and epoch alone."""
        lengths = np.minimum(self.learnt.cut, self.places.most)
        return shuffled_batches(lengths, self.settings.batch, np.random.default_rng([self.seed, epoch]))

    def step(self, batch: np.ndarray, done: float) -> float:
        """One update by the ranks' shares of a batch, in one of the ranker's orders. Returns the loss."""
        self.model.train()
        self.model.generator.train(not self.model.shared)  # a frozen generator does not drop anything
        chance = np.random.default_rng([self.seed, self.steps, len(batch)])  # alike on all ranks
        orders = self.model.options.orders
        order = orders[int(chance.integers(len(orders)))]
        # A user's tokens see all candidates in this order: as many as there will be, or it learns another crowd.
        negatives = CANDIDATES - 1 if order == "item" else self.settings.negatives
        rows, teacher = draw(self.learnt.at(batch), negatives, chance)
        mine = np.arange(self.world.rank, len(batch), self.world.ranks)
        loss = (
            self._loss(self.learnt.at(batch[mine]), order, rows[mine], teacher[mine]) if len(mine) else None
        )
        self.update.add(loss, len(mine))
        return self.learn(done)

    def _loss(self, picked: Candidates, order: str, rows: np.ndarray, teacher: np.ndarray) -> torch.Tensor:
        """Summed over places."""
        asked = self.places.ask(picked, rows)
        scores = _without_nobody(asked.scores(self.model, order, self.entries), rows)
        first = torch.zeros(len(rows), dtype=torch.long, device=scores.device)
        loss = F.cross_entropy(scores, first, reduction="sum")
        likely = torch.from_numpy(teacher).to(scores.device).softmax(1)
        loss = loss + self.settings.teacher * F.cross_entropy(scores, likely, reduction="sum")
        if order == "item" and "user" in self.model.options.orders:
            said = self._said_in_order_user(asked, rows)
            loss = loss + self.settings.alike * F.cross_entropy(scores, said, reduction="sum")
        return loss

    @torch.no_grad()
    def _said_in_order_user(self, asked: Asked, rows: np.ndarray) -> torch.Tensor:
        """How likely the averaged weights find each candidate: [B, 1 + negatives]."""
        return _without_nobody(asked.scores(self.average, "user"), rows).softmax(1)


class RankerRun(PlacesRun):
    """A `training.loop.Task`."""

    def __init__(
        self, world: World, ranker: Ranker, places: Places, candidates: dict[str, Candidates],
        settings: RankerSettings, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(world, ranker, places, candidates["train"], settings, seed)
        self.events = len(self.learnt)
        sample = np.random.default_rng(0).permutation(len(candidates["validation"]))[:VALIDATION_USERS]
        self.checked = candidates["validation"].at(np.sort(sample))

    def validate(self) -> tuple[float, dict[str, object]]:
        """NDCG@10 of the averaged weights and the generator together, over all orders."""
        weight, figures = self.choose(self.average, self.checked)
        return figures["NDCG@10"], {"generator_weight": weight, **figures}

    def choose(self, ranker: Ranker, places: Candidates) -> tuple[float, dict[str, float]]:
        """What the generator's log-probability counts best beside scores, and how good both then are.

        Every rank scores its part.
        """
        part = places.at(np.array_split(np.arange(len(places)), self.world.ranks)[self.world.rank])
        scored = {
            order: self.world.gather_rows(scores_of(ranker, self.places, part, order))
            for order in ranker.options.orders
        }
        return choose_weight(places, scored)


def _without_nobody(scores: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """`scores` [B, C], those of no candidate (`rows` int[B, C] of -1) as NOBODY's."""
    return scores.masked_fill(torch.from_numpy(rows < 0).to(scores.device), NOBODY)


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
