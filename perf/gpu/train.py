"""How many events a second a device learns of the generator, as `genrec train` takes its steps: TF32 on a GPU.

Histories are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.nn.model import Generator
from perf.gpu.timing import median_wall_ms
from training.data.histories import Histories
from training.generator.recipes import Recipe
from training.generator.run import GeneratorRun
from training.generator.train import fresh_generator
from training.sharded.world import World

SIZES = (256, 64, 16)
PASSES = 3  # a backward pass has two products for each of the forward one


@dataclass(frozen=True)
class Setting:
    """What is trained: `users` of `length` items out of `items`, by `small` on both; `timed` on the device."""

    users: int
    length: int
    items: int
    steps: int  # that are compared
    small: Recipe
    timed: dict[str, Recipe]


LARGE = Recipe(hidden_size=512, num_hidden_layers=8, head_dim=64)
TINY = Recipe(max_history=8, hidden_size=16, num_hidden_layers=1, head_dim=8, batch_items=64)
FULL = Setting(
    2000, 100, 4000, 12, Recipe(),
    {"small": Recipe(), "large": LARGE, "large, in batches of 16,384": replace(LARGE, batch_items=16384)},
)  # fmt: skip
DRY = Setting(40, 12, 60, 4, TINY, {"small": TINY, "large": replace(TINY, num_hidden_layers=2)})


def data(setting: Setting) -> tuple[Histories, Catalogue]:
    """Users who walk round a ring of items, two further each time but now and then."""
    draw, n = np.random.default_rng(0), setting.items
    steps = 2 * np.arange(setting.length) + (draw.random((setting.users, setting.length)) < 0.1)
    rows = (draw.integers(n, size=(setting.users, 1)) + steps) % n
    histories = Histories(
        np.arange(setting.users), rows.ravel(), np.arange(setting.users + 1) * setting.length
    )
    codes = np.stack((np.arange(n) % 256, np.arange(n) // 256 % 64, draw.integers(16, size=n)), 1)
    popularity = np.bincount(histories.cut(2).items, minlength=n)
    return histories, Catalogue(np.arange(n), codes.astype(np.int32), [""] * n, popularity, SIZES)


def begin(setting: Setting, recipe: Recipe, device: torch.device) -> GeneratorRun:
    """A training that has taken no step; of one recipe it begins alike on every device."""
    histories, catalogue = data(setting)
    world, model = World(device=str(device)), fresh_generator(recipe, catalogue, 0, [])
    run = GeneratorRun(world, model.to(device), recipe, catalogue, histories, 0)
    world.seed_dropout(0)
    return run


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Those of float32 on a GPU: `highest`, or `high` for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure(setting: Setting, device: torch.device, peak: float) -> dict[str, dict[str, float]]:
    """Events learnt a second, on the device and, by the small model, on the CPU; `peak` operations a second."""
    with products("high"):
        found = {name: timed(setting, recipe, device) for name, recipe in setting.timed.items()}
    found["small, on the CPU"] = timed(setting, setting.small, torch.device("cpu"))
    return {
        name: {**row, "of_measured_gemm": row["operations_per_second"] / peak} for name, row in found.items()
    }


def timed(setting: Setting, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """One update after the other by the batch with most events."""
    run = begin(setting, recipe, device)
    batch = max(run.batches(0), key=events)
    seconds = median_wall_ms(lambda: run.step(batch, 0.0), device) / 1e3
    return {
        "ms": 1e3 * seconds, "events": events(batch), "events_per_second": events(batch) / seconds,
        "operations_per_second": operations(run.model, batch) / seconds,
    }  # fmt: skip


def operations(model: Generator, batch: np.ndarray) -> float:
    """Floating-point operations of an update by windows int64[w, 2] of one length, those of products and attention."""
    config = model.config
    matrices = sum(each.numel() for each in model.layers.parameters() if each.dim() > 1)
    head = config.hidden_size * config.vocab_size / config.levels  # of a token, only one level's
    span = config.levels * events(batch) / len(batch)
    attention = (
        config.num_hidden_layers * config.num_attention_heads * config.head_dim * span
    )  # causal: half of it
    return PASSES * 2 * config.levels * events(batch) * (matrices + head + attention)


def events(batch: np.ndarray) -> int:
    """Of windows int64[w, 2]."""
    return int((batch[:, 1] - batch[:, 0]).sum())
