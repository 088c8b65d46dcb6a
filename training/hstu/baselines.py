"""What a ranker of ratings must beat: rates of items, and factors of users and items (biased matrix factorisation).

Ratings are read in blocks and batches: of each one a number of 8 bytes is in memory, its place in an epoch.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.progress import counting
from training.data.histories import BLOCK_ITEMS
from training.hstu.ratings import Ratings

PRIOR = 20  # events that a rate begins with
EPOCHS, FACTORS, BATCH, RATE, DECAY = 6, 32, 8192, 3e-3, 1e-4


class Learnt:
    """The events that are not held out, by their number among these: `count` in all."""

    def __init__(self, ratings: Ratings) -> None:
        self.ratings = ratings
        lengths = np.diff(ratings.offsets) - ratings.held
        self.offsets = np.concatenate(([0], np.cumsum(lengths)))
        self.count = int(self.offsets[-1])

    def __call__(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Users and events of `numbers` int64[n]: int64[n] each."""
        users = np.searchsorted(self.offsets, numbers, "right") - 1
        return users, self.ratings.offsets[users] + numbers - self.offsets[users]


def item_rates(ratings: Ratings) -> np.ndarray:
    """Held-out events: the share of an item's earlier events with the label, float64[held out, tasks]."""
    learnt, size = Learnt(ratings), int(ratings.items.max()) + 1
    seen, liked = np.zeros(size), np.zeros((len(ratings.tasks), size))
    for start in range(0, learnt.count, BLOCK_ITEMS):
        _, events = learnt(np.arange(start, min(start + BLOCK_ITEMS, learnt.count)))
        items = ratings.items[events]
        seen += np.bincount(items, minlength=size)
        liked += [np.bincount(items, label, size) for label in ratings.labels(events).T]
    whole = liked.sum(1, keepdims=True) / learnt.count
    rates = (liked + PRIOR * whole) / (seen + PRIOR)
    return rates[:, ratings.items[ratings.held_out]].T


class Factors(nn.Module):
    """A product of factors and two biases, per task."""

    def __init__(self, users: int, items: int, tasks: int) -> None:
        super().__init__()
        self.tasks = tasks
        self.of_user, self.of_item = (nn.Embedding(n, tasks * (FACTORS + 1)) for n in (users, items))
        for table in (self.of_user, self.of_item):
            nn.init.normal_(table.weight, std=0.05)
            table.weight.data[:, :tasks] = 0

    def forward(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, tasks] of int64[n] each, and the squared size of the factors behind them."""
        u, i = self.of_user(users), self.of_item(items)
        factors = [each[:, self.tasks :].unflatten(1, (self.tasks, FACTORS)) for each in (u, i)]
        logits = (factors[0] * factors[1]).sum(2) + u[:, : self.tasks] + i[:, : self.tasks]
        return logits, sum(each.pow(2).sum(2).mean(0).sum() for each in factors)


def biased_factors(ratings: Ratings) -> list[np.ndarray]:
    """Held-out events: logits float32[held out, tasks] of factors that learnt the others, after each epoch."""
    held, learnt, found = np.flatnonzero(ratings.held_out), Learnt(ratings), []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Factors(len(ratings), int(ratings.items.max()) + 1, len(ratings.tasks))
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
        with counting("factors", EPOCHS * learnt.count, "event") as bar:
            for _ in range(EPOCHS):
                for numbers in torch.randperm(learnt.count).split(BATCH):
                    users, events = learnt(numbers.numpy())
                    labels = torch.from_numpy(ratings.labels(events)).float()
                    logits, size = model(torch.from_numpy(users), torch.from_numpy(ratings.items[events]))
                    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
                    optimiser.zero_grad()
                    (loss.mean(0).sum() + DECAY * size).backward()
                    optimiser.step()
                    bar.update(len(numbers))
                with torch.no_grad():
                    found.append(_logits(model, ratings, held))
    return found


def _logits(model: Factors, ratings: Ratings, events: np.ndarray) -> np.ndarray:
    """float32[n, tasks] of events int64[n]."""
    parts = np.array_split(events, -(-len(events) // BATCH) or 1)
    asked = ((ratings.users_of(part), ratings.items[part]) for part in parts)
    return np.concatenate([model(*map(torch.from_numpy, each))[0].numpy() for each in asked])
