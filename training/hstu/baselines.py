"""What a ranker of ratings must beat: rates of items, and factors of users and items (biased matrix factorisation)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.progress import counting
from training.hstu.ratings import Ratings

PRIOR = 20  # events that a rate begins with
EPOCHS, FACTORS, BATCH, RATE, DECAY = 6, 32, 8192, 3e-3, 1e-4


def item_rates(ratings: Ratings) -> np.ndarray:
    """Held-out events: the share of an item's earlier events with the label, float64[held out, tasks]."""
    held, labels = ratings.held_out, ratings.labels(np.arange(len(ratings.items)))
    known, size = ratings.items[~held], int(ratings.items.max()) + 1
    seen = np.bincount(known, minlength=size)
    columns = []
    for label in labels[~held].T:
        rate = (np.bincount(known, label, size) + PRIOR * label.mean()) / (seen + PRIOR)
        columns.append(rate[ratings.items[held]])
    return np.stack(columns, 1)


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
    held = ratings.held_out
    users = torch.from_numpy(ratings.users_of(np.arange(len(ratings.items))))
    items = torch.from_numpy(ratings.items)
    labels = torch.from_numpy(ratings.labels(np.arange(len(ratings.items)))).float()
    found = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Factors(len(ratings), int(ratings.items.max()) + 1, labels.shape[1])
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
        learnt = torch.from_numpy(np.flatnonzero(~held))
        with counting("factors", EPOCHS * len(learnt), "event") as bar:
            for _ in range(EPOCHS):
                for batch in learnt[torch.randperm(len(learnt))].split(BATCH):
                    logits, size = model(users[batch], items[batch])
                    loss = F.binary_cross_entropy_with_logits(logits, labels[batch], reduction="none")
                    optimiser.zero_grad()
                    (loss.mean(0).sum() + DECAY * size).backward()
                    optimiser.step()
                    bar.update(len(batch))
                with torch.no_grad():
                    found.append(model(users[held], items[held])[0].numpy())
    return found
