"""Which entries of users leave first: what a rule is told, and the rule that knows nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Standing:
    """What a rule of eviction sees of READY entries that nobody reads, an element each."""

    now: int  # ns
    age: NDArray[np.float64]  # seconds since the last use
    tokens: NDArray[np.int64]
    owner: NDArray[np.uint64]  # [n, 2]


@dataclass(frozen=True)
class Room:
    """What a new entry would find: whether a place is free, and else what the least of the others is worth."""

    free: bool
    least: float


class Rule(Protocol):
    """Which entries leave first."""

    def worth(self, standing: Standing) -> NDArray[np.float64]:
        """float64[n]: what is lost with each; the least goes first, infinite worth never."""
        ...

    def evicted(self, worth: float) -> None:
        """One of that worth had to leave."""


class Recency:
    """The rule without knowledge: who was used last is worth most."""

    def worth(self, standing: Standing) -> NDArray[np.float64]:
        """float64[n]."""
        return -standing.age

    def evicted(self, worth: float) -> None:
        """Nothing is learnt."""
