"""The recipes: one small table of settings per data set, and a default by size for unknown data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from genrec.models.config import ModelConfig
from training.recipe_file import MOST_AVERAGING, check_least, check_within

OF_DATA = ("codebook_sizes", "text_weight")  # settings of `genrec data`
LEAST = {"batch_items": 1, "epochs": 1, "patience": 1, "validate_every": 1}


@dataclass(frozen=True)
class Recipe:
    """How a catalogue is tokenised and a generator trained. Chosen on validation items, never test items."""

    codebook_sizes: tuple[int, ...] = (256, 64, 16)
    text_weight: float = 0.2  # of the squared norm of an item vector; the rest is co-occurrence
    max_history: int = 50
    hidden_size: int = 64
    num_hidden_layers: int = 2
    head_dim: int = 32
    dropout: float = 0.3
    warm_start: float = 0.1  # root mean square of what the codebooks add to embeddings and head at the start
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    batch_items: int = 1024
    epochs: int = 20
    patience: int = 3  # validations without a better NDCG@10 before it stops
    validate_every: int = 2  # epochs
    averaging: float = 0.99  # decay of the moving average of weights, which is what is saved

    def __post_init__(self) -> None:
        check_least(
            self, {"hidden_size": 1, "num_hidden_layers": 1, "head_dim": 2, "max_history": 2, **LEAST}
        )
        check_within(
            self,
            {
                "learning_rate": 1, "weight_decay": 1, "averaging": MOST_AVERAGING, "dropout": 0.99,
                "warm_start": 10,
            },
        )  # fmt: skip

    def model(self, codebook_sizes: tuple[int, ...]) -> ModelConfig:
        """The generator these settings describe, over a catalogue's codebooks."""
        heads = max(1, self.hidden_size // self.head_dim)
        return ModelConfig(
            codebook_sizes,
            self.max_history,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=self.head_dim,
            intermediate_size=2 * self.hidden_size,
        )

    def as_json(self) -> dict[str, object]:
        """Plain values, tuples as lists."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


RECIPES = {
    "ml-100k": Recipe(codebook_sizes=(256, 1024, 16), epochs=8),
    "ml-1m": Recipe(codebook_sizes=(512, 2048), dropout=0.2, averaging=0.995, epochs=10, patience=4),
    "amazon-beauty": Recipe(
        codebook_sizes=(2048, 4096), text_weight=0.4, max_history=20, dropout=0.2, epochs=10
    ),
}


def recipe_for(name: str, items: int, interactions: int) -> Recipe:
    """The recipe of a known set, else one by size: codebooks whose product is many times the catalogue.

    Level 1 has a code for some six items (with 24 a code, on Beauty, level 2 stayed near uniform). Level 2 has
    one for every three, so that its code alone says nearly which item it is: with 64 instead of 4096 codes the
    validation NDCG@10 of Beauty was 0.0506 instead of 0.0590. The last level spreads what is left; epochs shrink
    as data grows, so that a run stays within an hour on two cores.
    """
    if name in RECIPES:
        return RECIPES[name]
    first = power_of_two(items / 8, 16, 4096)
    second = power_of_two(items / 3, 16, 8192)
    epochs = max(3, min(40, round(20_000_000 / max(interactions, 1))))
    return replace(Recipe(), codebook_sizes=(first, second, 16), epochs=epochs)


def power_of_two(value: float, low: int, high: int) -> int:
    """The power of two nearest above `value`, within [low, high]."""
    size = low
    while size < value and size < high:
        size *= 2
    return size
