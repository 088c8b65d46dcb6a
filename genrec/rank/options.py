"""What a ranker was trained for: `model/ranker.json`, which serving reads without torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from genrec.artifact import configuration
from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from genrec.json_fields import made_of
from genrec.models.config import ModelConfig
from genrec.words import command

OPTIONS, WEIGHTS = "ranker.json", "ranker.safetensors"
MOST_CANDIDATES = 512  # of a request
USUAL_CANDIDATES = 100  # what a retrieval finds, where nobody says how many (BAT, section 6.2)
MOST_GENERATOR_WEIGHT = 1e6  # beyond it the ranker's own score is lost in float32 beside any log-probability
ORDERS = ("user", "item", "split", "whole")  # in which a ranking is computed; `whole` reuses nothing
HISTORIES = ("codes", "tokens")  # what stands for an item in a history: its semantic ID, or its own tokens
ONLY_USER = len(ORDERS)  # a plan that computes the user's entry and ranks nothing
# What a ranker is trained for -> the orders it can be read in. `both` draws one of the paper's two per batch,
# `all` one of three.
TRAINED_FOR = {
    "split": ("split",), "user": ("user",), "item": ("item",), "both": ("user", "item"),
    "all": ("split", "user", "item"),
}  # fmt: skip


@dataclass(frozen=True)
class RankerConfig:
    """How a ranker is laid out, and what the generator's log-probability counts beside its scores.

    `shared`: the generator's layers make the KV of users and items, and discriminant tokens have layers of their own.
    `order`: what it was trained for, a key of TRAINED_FOR. `item_tokens`: t, tokens of an item.
    `history`: what a history is made of, one of HISTORIES.
    `reach`: how many of a user's tokens a discriminant token sees: the newest, which have read those before them.
    An even number; 0: all.
    `layers`: how many a discriminant token has, the generator's last ones; 0: all. It reads KV of no others. Fewer cost
    less, and only where they are of its own.
    `generator_weight`: an item of log-probability p and score s is ranked by s + generator_weight * p.
    """

    shared: bool = True
    order: str = "split"
    item_tokens: int = 1
    generator_weight: float = 0.0
    history: str = "codes"
    reach: int = 0
    layers: int = 0

    def __post_init__(self) -> None:
        if self.order not in TRAINED_FOR:
            raise InputError("order", f"is {self.order!r}", f"one of {', '.join(TRAINED_FOR)}")
        if self.history not in HISTORIES:
            raise InputError("history", f"is {self.history!r}", f"one of {', '.join(HISTORIES)}")
        if not isinstance(self.shared, bool):
            raise InputError("shared", f"is {self.shared!r}", "true or false")
        if not isinstance(self.item_tokens, int) or self.item_tokens < 1:
            raise InputError("item_tokens", f"is {self.item_tokens!r}", "a whole number, 1 or more")
        if not isinstance(self.reach, int) or not 0 <= self.reach < 2**31 or self.reach % 2:
            limit = f"an even number of tokens below {2**31}, or 0 for all"
            raise InputError("reach", f"is {self.reach!r}", limit)
        if not isinstance(self.layers, int) or self.layers < 0 or (self.layers and not self.shared):
            limit = "a whole number, 0 for all; with a backbone of its own all"
            raise InputError("layers", f"is {self.layers!r}", limit)
        weight = self.generator_weight
        if not isinstance(weight, (int, float)) or not 0 <= weight <= MOST_GENERATOR_WEIGHT:
            raise InputError(
                "generator_weight", f"is {weight!r}", f"a number, 0 to {MOST_GENERATOR_WEIGHT:g}"
            )

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders in which it can be read."""
        return TRAINED_FOR[self.order]

    def first_layer(self, config: ModelConfig) -> int:
        """Of a discriminant token, among the generator's. Raises InputError where that has not so many."""
        most = config.num_hidden_layers
        if self.layers > most:
            raise InputError("layers", f"is {self.layers}", f"at most {most}, as the generator has")
        return most - self.layers if self.layers else 0

    def history_step(self, config: ModelConfig) -> int:
        """Tokens of an item of a history."""
        return self.item_tokens if self.history == "tokens" else config.levels

    def longest_history(self, config: ModelConfig) -> int:
        """Tokens of a history of `max_history` items."""
        return config.max_history * self.history_step(config)

    def save(self, path: Path) -> None:
        """Write ranker.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def of(cls, artifact: Path, target: str) -> RankerConfig:
        """Of the ranker that a target runs. Raises ArtifactError."""
        return cls.load(configuration(artifact, target, OPTIONS))

    @classmethod
    def load(cls, path: Path) -> RankerConfig:
        """Read ranker.json. Raises ArtifactError."""
        if not path.exists():
            made = command("train", path.parents[1], "--ranker")  # in model/ or onnx/
            raise ArtifactError(path, f"does not exist; {made} makes it")
        return made_of(cls, read_json(path), path)
