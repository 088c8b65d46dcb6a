"""How an HSTU ranker is made and trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from genrec.engine.instructions import AVX512_BF16, features
from genrec.errors import InputError
from genrec.rank.hstu import check_experts
from training.recipe_file import MOST_AVERAGING, check_least, check_within

LEAST = {"epochs": 1, "patience": 1, "tokens": 1, "accumulate": 1, "hot_every": 0}


@dataclass(frozen=True)
class HstuSettings:
    """Chosen on validation users."""

    # A rating of at least this is liked; the first is the score. Without any: usual_tasks of ratings.py
    tasks: tuple[int, ...] = ()
    experts: int = 0  # that tasks share, with a gate and a tower each; 0: one MLP for all tasks
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
    hot_every: int = 0  # dynamic rows looked up less than once in so many updates are in fp16; 0: none
    bf16: bool = False  # products of the dense layers, on GPUs and on CPUs that have them

    def __post_init__(self) -> None:
        check_experts(self.experts)
        check_least(self, LEAST)
        check_within(
            self, {"learning_rate": 1, "weight_decay": 1, "averaging": MOST_AVERAGING, "unknown": 0.99}
        )
        if not self.averaging:  # of dynamic rows, an average is kept
            raise InputError("averaging", "is 0", f"a number above 0, at most {MOST_AVERAGING}")

    def check_on(self, device: torch.device) -> None:
        """Raises InputError for what they ask of a device that does not have it."""
        if self.bf16 and device.type == "cpu" and not features() >= AVX512_BF16:
            raise InputError("bf16", "is asked for, on a CPU without avx512_bf16", "false")
