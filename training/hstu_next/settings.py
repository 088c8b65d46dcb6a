"""How an HSTU model of the next item is made and trained."""

from __future__ import annotations

from dataclasses import dataclass

from genrec.errors import InputError
from genrec.nn.whole_softmax import LEAST_TEMPERATURE
from genrec.rank.hstu import NextConfig
from training.recipe_file import MOST_AVERAGING, check_least, check_within

LEAST = {"epochs": 1, "patience": 1, "validate_every": 1, "tokens": 1, "max_history": 2,
         "hidden_size": 1, "layers": 1, "heads": 1}  # fmt: skip


@dataclass(frozen=True)
class HstuNextSettings:
    """As published, but for a full softmax."""

    max_history: int = 200  # newest events
    hidden_size: int = 64
    layers: int = 4
    heads: int = 2
    dropout: float = 0.2
    temperature: float = 0.05  # of scores, which are cosines
    epochs: int = 50
    patience: int = 5  # validations without a better NDCG@10 before it stops
    validate_every: int = 2  # epochs
    tokens: int = 8192  # of a batch, on all ranks together
    learning_rate: float = 2e-3
    weight_decay: float = 0.0
    averaging: float = 0.995

    def __post_init__(self) -> None:
        check_least(self, LEAST)
        check_within(
            self, {"learning_rate": 1, "weight_decay": 1, "averaging": MOST_AVERAGING, "dropout": 0.99}
        )
        if not LEAST_TEMPERATURE <= self.temperature <= 1:
            raise InputError("temperature", f"is {self.temperature}", f"a number, {LEAST_TEMPERATURE} to 1")
        if self.hidden_size % self.heads:
            raise InputError("hidden_size", f"is {self.hidden_size}", f"a multiple of heads, {self.heads}")

    def model(self, items: int, codebook_sizes: tuple[int, ...]) -> NextConfig:
        """The model that these settings describe, over a catalogue."""
        return NextConfig(
            items, codebook_sizes, max_history=self.max_history, hidden_size=self.hidden_size, layers=self.layers,
            heads=self.heads, dropout=self.dropout, temperature=self.temperature,
        )  # fmt: skip
