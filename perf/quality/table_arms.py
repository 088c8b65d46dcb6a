"""The arms of `table_quality`: HSTU models whose rows by id lie in static tables, or in dynamic ones; experts."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from genrec.engine.instructions import AVX512_BF16, features
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import HstuConfig
from training.embedding.optimizers import RowAdam
from training.embedding.table import DynamicTable
from training.embedding.vectors import MixedVectors
from training.hstu.ratings import Ratings
from training.hstu.rows import ITEM, PLAIN, SCALE, RowsById
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.hstu_next.run import HstuNextRun
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed
from training.loop import Limits, train
from training.run import MOMENTS, Run
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.world import World

HOT_EVERY = 2  # updates; two fifths of the rows of ml-100k are looked up less often
STATIC, DYNAMIC, COLD, BF16 = "static", "dynamic", "cold rows in fp16", "dense products in bf16"
EXPERTS = "4 experts"
NEXT_STATIC, NEXT_DYNAMIC = "next item, static", "next item, dynamic"


class StaticRun(HstuRun):
    """The ranker with torch's own embeddings of all items and features, which learn like all other weights."""

    def __init__(
        self, world: World, ratings: Ratings, model: HstuRanker, settings: HstuSettings, seed: int
    ) -> None:
        plain = {name: getattr(model, name) for name in PLAIN.values()}
        super().__init__(world, ratings, model, settings, seed)
        del model.by_id
        for name, table in plain.items():
            model.add_module(name, table)
        Run.__init__(self, world, model, copy.deepcopy(model).eval(), self.pace)

    def fill_average(self) -> None:
        """The average has its rows already."""


class WholeTable(torch.nn.Module):
    """Used instead of a plain item table: a dynamic one, read whole."""

    def __init__(self, embeddings: ShardedEmbeddings, items: int) -> None:
        super().__init__()
        self.embeddings, self.ids = embeddings, np.arange(items)

    @property
    def weight(self) -> torch.Tensor:
        """[I, d]."""
        return self.embeddings({ITEM: self.ids})[ITEM]


class DynamicNextRun(HstuNextRun):
    """The model of the next item with its items' rows in a dynamic table."""

    def __init__(
        self, world: World, timed: Timed, model: HstuNext, settings: HstuNextSettings, seed: int
    ) -> None:
        super().__init__(world, timed, model, settings, seed)
        self.average.of_item.requires_grad_(False)  # its rows are averaged where they lie
        self.rows = RowAdam(settings.learning_rate, 1e-8, *MOMENTS, settings.weight_decay, settings.averaging)
        feature = FeatureConfig(ITEM, ITEM, model.config.hidden_size)
        embeddings = ShardedEmbeddings([feature], world, self.rows, scale=SCALE, seed=seed)
        model.add_module("of_item", WholeTable(embeddings, model.config.items))
        Run.__init__(self, world, model, self.average, self.pace, embeddings)

    @torch.no_grad()
    def validate(self) -> tuple[float, dict[str, Any]]:
        """As the other, of the averaged rows."""
        for ids, _, state, _ in table_of(self).export():
            averages = self.rows.averages(state, self.model.config.hidden_size)
            self.average.of_item.weight[ids] = torch.from_numpy(averages)
        return super().validate()


# Arm -> what is trained, and settings that differ.
RANKERS: dict[str, tuple[type[HstuRun], dict[str, Any]]] = {
    STATIC: (StaticRun, {}), DYNAMIC: (HstuRun, {}), COLD: (HstuRun, {"hot_every": HOT_EVERY}),
    BF16: (HstuRun, {"bf16": True}), EXPERTS: (HstuRun, {"experts": 4}),
}  # fmt: skip
NEXTS: dict[str, type[HstuNextRun]] = {NEXT_STATIC: HstuNextRun, NEXT_DYNAMIC: DynamicNextRun}


def table_of(run: HstuRun | HstuNextRun) -> DynamicTable:
    """The one that has all rows; ids of items are rows of the catalogue."""
    (sharded,) = run.embeddings.sharded.values()
    return sharded.table


@torch.no_grad()
def begin(weight: torch.Tensor, seed: int) -> None:
    """Make `weight` [I, d] what a dynamic table of `seed` begins with."""
    table = DynamicTable(weight.shape[1], scale=SCALE, seed=seed)
    weight.copy_(torch.from_numpy(table.look_up(np.arange(len(weight)))))


@torch.no_grad()
def begin_both(model: HstuRanker, seed: int) -> None:
    """Make the plain tables of items and of features' values what dynamic ones of `seed` begin with."""
    rows = RowsById(World(), model.config.hidden_size, RowAdam(), seed, 0)
    items, features = (torch.arange(len(each.weight)) for each in (model.of_item, model.of_feature))
    model.of_item.weight.copy_(rows(items, torch.zeros_like(items)))
    model.of_feature.weight.copy_(rows(torch.zeros_like(features), features))


def ranker_run(
    arm: str, ratings: Ratings, config: HstuConfig, codes: torch.Tensor, settings: HstuSettings, seed: int
) -> HstuRun:
    """An arm before its first step. Raises InputError for one that the CPU cannot do."""
    torch.manual_seed(seed)
    made, changed = RANKERS[arm]
    settings = replace(settings, **changed)
    model = HstuRanker(replace(config, experts=settings.experts), codes)
    begin_both(model, seed)
    return made(World(), ratings, model, settings, seed)


def next_run(arm: str, timed: Timed, codes: torch.Tensor, settings: HstuNextSettings, config: HstuConfig, seed: int
) -> HstuNextRun:  # fmt: skip
    """The same of the model of the next item; of `config` its items and codebooks."""
    torch.manual_seed(seed)
    model = HstuNext(settings.model(config.items, config.codebook_sizes), codes)
    begin(model.of_item.weight, seed)
    return NEXTS[arm](World(), timed, model, settings, seed)


def learn(run: HstuRun | HstuNextRun, limits: Limits, seed: int) -> None:
    """To the end, as `genrec train` does; arms of a seed drop the same."""
    run.world.seed_dropout(seed)
    with TemporaryDirectory() as state:
        train(run.world, run, limits, Path(state), save_every_s=math.inf)


def cold_share(run: HstuRun) -> float:
    """Of the rows that there are, those in fp16."""
    table = table_of(run)
    return table.values.cold.held / len(table) if isinstance(table.values, MixedVectors) else 0.0


def possible() -> list[str]:
    """The arms of the ranker that this CPU can do."""
    return [arm for arm in RANKERS if arm != BF16 or features() >= AVX512_BF16]
