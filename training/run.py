"""What tasks of `training.loop` share: a model, its optimiser, the moving average of its weights, the best of those."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import nn

from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.step import TableStep
from training.sharded.world import World
from training.shards import dense
from training.updates import LARGEST_NORM, cosine, follow

MOMENTS = (0.9, 0.98)  # Adam's
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Pace:
    """How fast a model learns: its rate warms up and falls, and an average follows."""

    learning_rate: float
    weight_decay: float  # of matrices
    averaging: float  # decay of the average
    warm_up: int  # steps
    least: float  # of the learning rate, at the end


class Run(Generic[Model]):
    """Weights are alike on all ranks; rows by id, where a model has some, lie in `embeddings`.

    What is frozen stays as it is, and is in no checkpoint.
    """

    def __init__(
        self, world: World, model: Model, average: Model, pace: Pace, embeddings: ShardedEmbeddings | None = None,
        shares: Mapping[nn.Module, float] | None = None,
    ) -> None:  # fmt: skip
        """`average` is a copy of `model`, or of all of it but rows by id.

        `shares` are those of the learning rate that parts of the model have; by default it is one part.
        """
        self.world, self.model, self.average, self.pace, self.steps = world, model, average, pace, 0
        self.best = copy.deepcopy(average)
        self.embeddings = embeddings or ShardedEmbeddings([], world)
        self.frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
        learning = [each for each in model.parameters() if each.requires_grad]
        self.optimiser = torch.optim.AdamW(
            [{"params": [p for p in part.parameters() if p.requires_grad and (p.dim() > 1) is matrices],
              "weight_decay": pace.weight_decay if matrices else 0.0, "share": share}
             for part, share in (shares or {model: 1.0}).items() for matrices in (True, False)],
            lr=pace.learning_rate, betas=MOMENTS, fused=True,
        )  # fmt: skip
        self.update = TableStep(world, self.embeddings, learning, self.optimiser, LARGEST_NORM)

    def learn(self, done: float) -> float:
        """One update by what was added to `update`; `done` in 0..1 is the place in the schedule. Returns the loss."""
        rate = self.pace.learning_rate * cosine(self.steps, self.pace.warm_up, done, self.pace.least)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["share"]
        self.embeddings.set_rate(rate)
        self.update.update()
        self.steps += 1
        follow(self.average, self.model, self.pace.averaging, self.steps)
        return self.update.loss

    def keep(self) -> None:
        """The average as it was measured."""
        self.best.load_state_dict(self.average.state_dict())

    def state(self) -> dict[str, torch.Tensor]:
        """Model and optimiser, the average and the best, and the steps taken."""
        tensors = dense.state_of(self.model, self.optimiser) | {"steps": torch.tensor(self.steps)}
        for name, module in self._copies().items():
            tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        return {name: value for name, value in tensors.items() if name.partition(".")[2] not in self.frozen}

    def take_up(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave. Raises ArtifactError."""
        own = self.model.state_dict()
        names = ("model", *self._copies())
        tensors = {f"{name}.{key}": own[key] for name in names for key in self.frozen} | dict(tensors)
        dense.restore(self.model, self.optimiser, tensors)
        for name, module in self._copies().items():
            dense.restore_module(module, name, tensors)
        self.steps = int(tensors["steps"])

    def _copies(self) -> dict[str, Model]:
        return {"average": self.average, "best": self.best}
