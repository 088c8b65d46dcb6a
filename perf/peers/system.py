"""What every system that is compared can do: ours and the peers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perf.peers.folder import PeerModel


@dataclass(frozen=True)
class Prompts:
    """The same prompts for every system: catalogue rows int64[n, S / L], and their tokens int64[n, S]."""

    model: PeerModel
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @classmethod
    def draw(cls, model: PeerModel, tokens: int, count: int, seed: tuple[int, ...]) -> Prompts:
        """`count` prompts of `tokens` (a multiple of L) of random items: of another seed, others."""
        items = tokens // model.config.levels
        rows = np.random.default_rng(seed).integers(0, len(model.tokens), (count, items))
        return cls(model, rows, model.tokens[rows].reshape(count, tokens))

    def first(self, count: int) -> Prompts:
        """Only the first of them."""
        return Prompts(self.model, self.rows[:count], self.tokens[:count])


@dataclass(frozen=True)
class Turn:
    """Requests of one system, one after the other or so many at a time."""

    seconds: list[float]  # of each request, or of each batch where requests came together
    wall_s: float
    # Per request the catalogue rows answered int64[W], -1 for what is no item
    answers: list[NDArray[np.int64]]
    compute_s: dict[str, float] = field(default_factory=dict)  # ours, one at a time: per request and phase

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.answers) / self.wall_s


class System(Protocol):
    """One column of the comparison. Everything raises Refusal with what goes into the cell."""

    name: str

    def start(self, width: int) -> None:
        """Be ready for cells of this beam width; begin to count peak memory."""

    def turn(self, prompts: Prompts, width: int, concurrency: int, limit_s: float) -> Turn:
        """All prompts, `concurrency` at a time, asking for `width` items each; stopped after `limit_s`."""

    def peak_bytes(self, prompts: Prompts, width: int) -> int:
        """Peak memory of all its processes in this cell; may ask the prompts once more."""

    def stop(self) -> None:
        """End its processes."""
