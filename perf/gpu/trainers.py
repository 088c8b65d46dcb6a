"""What `genrec train --device cuda` trains beside the generator: on a device and on the CPU, and how fast HSTU is.

A ranker, a draft head, an HSTU ranker of ratings and an HSTU model of the next item. Histories are those of
`perf.gpu.train`; ratings, times and a generator's candidates are made up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genrec.draft.options import DraftConfig
from genrec.nn.hstu import HstuLayer, HstuRanker
from genrec.nn.hstu_next import HstuNext
from genrec.nn.ranker import Ranker
from genrec.rank.hstu import HstuConfig
from perf.gpu.timing import median_wall_ms
from perf.gpu.train import PASSES, Setting, data, products
from perf.gpu.train_check import off
from training.generator.draft import DraftSettings, train_draft
from training.generator.train import fresh_generator
from training.hstu.ratings import Ratings
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.hstu.train import train_hstu
from training.hstu_next.run import HstuNextRun
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed
from training.hstu_next.train import train_hstu_next
from training.ranker.candidates import CANDIDATES, Candidates, places_of
from training.ranker.evaluate import Places
from training.ranker.run import RankerSettings
from training.ranker.train import train_ranker
from training.run import Run
from training.sharded.world import World

EPOCHS, CHECKED_USERS, EVENTS = (
    2,
    200,
    60,
)  # of a check; an HSTU ranker is validated on users of 40 events or more
TIMED_EVENTS = 200  # of a user
KINDS = 7  # of values of a user's feature
SPAN_S = 3600  # between two events
HOST = torch.device("cpu")


@dataclass(frozen=True)
class HstuShape:
    """A model, and the tokens of one of its updates."""

    hidden_size: int
    layers: int
    heads: int
    max_history: int
    tokens: int


SMALL, LARGE = HstuShape(64, 4, 2, 200, 8192), HstuShape(512, 8, 8, 200, 65536)
FULL = {"": SMALL, ", large": LARGE, ", large, in batches of 131,072": replace(LARGE, tokens=1 << 17)}
TINY = HstuShape(16, 1, 2, 16, 200)
DRY = {"": TINY, ", large": replace(TINY, layers=2)}


def check(setting: Setting, device: torch.device, folder: Path) -> dict[str, float]:
    """How far the losses on `device` are off the CPU's, by model. Raises AssertionError for more than is allowed."""
    checked = replace(setting, users=min(setting.users, CHECKED_USERS), length=EVENTS)
    found = {}
    with products("highest"):
        for name, losses in TRAINERS.items():
            there, here = (
                losses(checked, each, folder / f"{name} {n}") for n, each in enumerate((device, HOST))
            )
            found[name] = off(np.array(there), np.array(here))
    return found


def ranker_losses(setting: Setting, device: torch.device, folder: Path) -> list[float]:
    """Of its epochs, over candidates that are drawn."""
    histories, catalogue = data(setting)
    torch.manual_seed(0)
    without_chance = replace(setting.small, dropout=0.0)  # its layers are copied
    ranker = Ranker(fresh_generator(without_chance, catalogue, 0, []), shared=True)
    draw, candidates = np.random.default_rng(0), {}
    lengths = np.diff(histories.offsets)
    for split in ("train", "validation"):
        places = places_of(lengths, split, 2)
        user, cut = np.ascontiguousarray(places.T, np.int32)
        rows = draw.random((len(places), setting.items)).argsort(1)[:, :CANDIDATES]
        target = histories.items[histories.offsets[user] + cut]
        scores = -np.sort(draw.random(rows.shape), 1).astype(np.float32)
        candidates[split] = Candidates(user, cut, target.astype(np.int32), rows.astype(np.int32), scores)
    codes = catalogue.codes + np.array(ranker.config.code_offsets)
    places = Places(list(histories.rows()), codes, codes, codes, ranker.config.max_history)
    settings = RankerSettings(epochs=EPOCHS)
    return losses_of(train_ranker(World(device=str(device)), ranker, places, candidates, settings, folder)[1])


def draft_losses(setting: Setting, device: torch.device, folder: Path) -> list[float]:
    """Of its epochs, over a generator that stays as it is."""
    histories, catalogue = data(setting)
    given = histories, catalogue, fresh_generator(setting.small, catalogue, 0, [])
    settings = DraftSettings(epochs=EPOCHS)
    return losses_of(train_draft(World(device=str(device)), *given, settings, DraftConfig(), folder)[2])


def ratings_losses(setting: Setting, device: torch.device, folder: Path) -> list[float]:
    """Of its epochs."""
    ratings, model, settings = of_ratings(setting, SMALL, device)
    return losses_of(train_hstu(World(device=str(device)), ratings, model, settings, folder)[1])


def next_losses(setting: Setting, device: torch.device, folder: Path) -> list[float]:
    """Of its epochs."""
    timed, model, settings = of_next(setting, SMALL, device)
    return losses_of(train_hstu_next(World(device=str(device)), timed, model, settings, folder)[1])


TRAINERS: dict[str, Callable[[Setting, torch.device, Path], list[float]]] = {
    "hstu-ranker": ratings_losses, "hstu-next": next_losses, "ranker": ranker_losses, "draft": draft_losses,
}  # fmt: skip


def losses_of(report: dict[str, Any]) -> list[float]:
    """Of the log's epochs."""
    return [float(each["loss"]) for each in report["log"]]


def of_ratings(
    setting: Setting, shape: HstuShape, device: torch.device
) -> tuple[Ratings, HstuRanker, HstuSettings]:
    """What an HSTU ranker learns from, as it begins, without dropout."""
    histories, catalogue = data(setting)
    draw, events = np.random.default_rng(1), len(histories.items)
    ratings = Ratings(
        histories.offsets, histories.items, draw.integers(1, 6, events), SPAN_S * np.arange(events),
        draw.integers(1, 1 + KINDS, (setting.users, 1)), KINDS,
    )  # fmt: skip
    torch.manual_seed(0)
    config = HstuConfig(
        setting.items, tuple(catalogue.codebook_sizes), KINDS, shape.max_history, shape.hidden_size, shape.layers,
        shape.heads, dropout=0.0,
    )  # fmt: skip
    model = HstuRanker(config, torch.from_numpy(catalogue.codes.astype(np.int64))).to(device)
    return ratings, model, HstuSettings(epochs=EPOCHS, tokens=shape.tokens)


def of_next(
    setting: Setting, shape: HstuShape, device: torch.device
) -> tuple[Timed, HstuNext, HstuNextSettings]:
    """What an HSTU model of the next item learns from, as it begins, without dropout."""
    histories, catalogue = data(setting)
    timed = Timed(histories.offsets, histories.items, SPAN_S * np.arange(len(histories.items)))
    settings = HstuNextSettings(
        shape.max_history, shape.hidden_size, shape.layers, shape.heads, dropout=0.0, epochs=EPOCHS,
        validate_every=1, tokens=shape.tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    config = settings.model(setting.items, tuple(catalogue.codebook_sizes))
    return timed, HstuNext(config, torch.from_numpy(catalogue.codes.astype(np.int64))).to(device), settings


def measure(
    setting: Setting, shapes: dict[str, HstuShape], device: torch.device, peak: float
) -> dict[str, dict[str, float]]:
    """As `perf.gpu.train.measure`, of both HSTU models in all shapes, and in the first one on the CPU."""
    setting = replace(setting, length=min(3 * setting.length, TIMED_EVENTS))
    cells = [(f"{name}{shape}", device, shape) for shape in shapes for name in ("hstu-ranker", "hstu-next")]
    cells += [(f"{name}, on the CPU", HOST, next(iter(shapes))) for name in ("hstu-ranker", "hstu-next")]
    with products("high"):
        return {name: timed_update(setting, name, shapes[shape], where, peak) for name, where, shape in cells}


def timed_update(
    setting: Setting, name: str, shape: HstuShape, device: torch.device, peak: float
) -> dict[str, float]:
    """One update after the other by the first batch."""
    world = World(device=str(device))
    run: Run[Any]
    if name.startswith("hstu-ranker"):
        run = HstuRun(world, *of_ratings(setting, shape, device), 0)
        batch = run.batches(0)[0]
        events = sum(len(each.asked) for each in batch)
        lengths = np.array([each.size(1) for each in batch])
    else:
        run = HstuNextRun(world, *of_next(setting, shape, device), 0)
        batch = run.batches(0)[0]
        lengths = batch[:, 1] - batch[:, 0]
        events = int(lengths.sum())
    seconds = median_wall_ms(lambda: run.step(batch, 0.0), device) / 1e3
    done = operations(run.model, lengths) / seconds
    return {
        "ms": 1e3 * seconds, "events": events, "events_per_second": events / seconds, "operations_per_second": done,
        "of_measured_gemm": done / peak,
    }  # fmt: skip


def operations(model: HstuRanker | HstuNext, lengths: np.ndarray) -> float:
    """Floating-point operations of an update by sequences of `lengths`: products, and attention as if causal."""
    layers = [each for each in model.layers if isinstance(each, HstuLayer)]
    matrices = sum(linear.weight.numel() for each in layers for linear in (each.project, each.finish))
    size, tokens = model.config.hidden_size, float(lengths.sum())
    attention = len(layers) * size * float((lengths.astype(np.float64) ** 2).sum())
    scores = tokens * model.config.items * size if isinstance(model, HstuNext) else 0.0
    return PASSES * 2 * (tokens * matrices + attention + scores)
