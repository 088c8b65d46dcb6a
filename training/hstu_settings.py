"""How an HSTU ranker is trained: the recipe `hstu-ranker`, or a file with other settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from genrec.engine.instructions import AVX512_BF16, features
from genrec.errors import InputError
from genrec.files import read_json

RECIPE = "hstu-ranker"
LEAST = {"epochs": 1, "patience": 1, "tokens": 1, "accumulate": 1, "hot_every": 0}
MOST_AVERAGING = 0.99999


@dataclass(frozen=True)
class HstuSettings:
    """Chosen on validation users."""

    epochs: int = 12
    patience: int = 3  # validations without a better GAUC before it stops
    tokens: int = 8192  # of a batch, on all ranks together
    accumulate: int = 1  # batches per update
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    averaging: float = 0.995
    unknown: float = (
        0.1  # share of samples without features, without ratings, without times, as requests may be
    )
    hot_every: int = 0  # item rows looked up less than once in so many updates are kept in fp16; 0: none
    bf16: bool = False  # products of the dense layers, on CPUs that have them

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise InputError(name, f"is {getattr(self, name)}", f"a whole number, at least {least}")
        for name, most in (
            ("learning_rate", math.inf),
            ("weight_decay", math.inf),
            ("averaging", MOST_AVERAGING),
        ):
            if not 0 < getattr(self, name) <= most:
                raise InputError(name, f"is {getattr(self, name)}", f"a number above 0, at most {most:g}")
        if not 0 <= self.unknown < 1:
            raise InputError("unknown", f"is {self.unknown}", "a share, 0 or more and below 1")
        if self.bf16 and not features() >= AVX512_BF16:
            raise InputError("bf16", "is asked for, on a CPU without avx512_bf16", "false")


def read_recipe(named: str) -> HstuSettings:
    """The settings of `hstu-ranker`, or of a JSON file that changes some: {"recipe": "hstu-ranker", "accumulate": 4}.

    Raises InputError, ArtifactError.
    """
    if named == RECIPE:
        return HstuSettings()
    if not named.endswith(".json"):
        raise InputError("recipe", f"is {named!r}", f"{RECIPE}, or the name of a file that ends in .json")
    said = read_json(Path(named))
    if not isinstance(said, dict) or said.pop("recipe", None) != RECIPE:
        raise InputError(
            named, f"does not say that it is for {RECIPE}", f'an object with "recipe": "{RECIPE}"'
        )
    known = {each.name: type(each.default) for each in fields(HstuSettings)}
    for name, value in said.items():
        if name not in known:
            raise InputError(f"{named}, {name}", "is no setting", ", ".join(known))
        kinds = (int, float) if known[name] is float else (known[name],)
        if type(value) not in kinds:
            raise InputError(f"{named}, {name}", f"is {value!r}", f"a value of type {known[name].__name__}")
    return HstuSettings(**said)
