"""A run that is taken up again ends where it would have ended: rows, weights, moments, data and chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.pooling import means
from tests.training.ranks import on_ranks
from tests.training.shards.test_sequences import COLUMNS, write_shards
from training.balance import BalancedBatches, Cost
from training.embedding.optimizers import RowAdam
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.step import TableStep
from training.sharded.world import World
from training.shards import checkpoint, dense
from training.shards.sequences import read_shards


def train(world: World, paths: list[Path], folder: str, resume: bool, stop: int) -> dict[str, Any]:
    """Learn from the shards with dropout, save after `stop` steps and end; or go on to the end of the data."""
    torch.manual_seed(world.rank)
    embeddings = ShardedEmbeddings([FeatureConfig("items", "item", 4)], world, RowAdam(0.05))
    model = torch.nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(0.3)
        model.bias.zero_()
    optimizer, position, done = torch.optim.Adam(model.parameters(), 0.05), {}, 0
    if resume:
        restored = checkpoint.load(Path(folder), world, embeddings)
        dense.restore(model, optimizer, restored.dense)
        position, done = restored.position, restored.step
    chunks = read_shards(paths, COLUMNS, world.rank, world.ranks, position)
    batches = BalancedBatches(world, chunks, COLUMNS, "items", 12.0, cost=Cost(4.0), position=position)
    step, users = TableStep(world, embeddings, model.parameters(), optimizer), []
    for batch in batches:
        items = batch.columns["items"]
        found = means(embeddings({"items": items.values})["items"], items)
        found = torch.nn.functional.dropout(found, 0.3)
        step.add(((model(found) - 1) ** 2).sum(), batch.count)
        step.update()
        users.append(batch.columns["user"].values.tolist())
        done += 1
        if done == stop:
            checkpoint.save(
                Path(folder), world, embeddings, done, batches.position, dense.state_of(model, optimizer)
            )
            break
    rows = [
        row
        for part in embeddings.sharded[4].table.export()
        for row in zip(*(e.tolist() for e in part), strict=True)
    ]
    return {"rows": sorted(rows), "weight": model.weight.tolist(), "users": users}


def test_taken_up_at_the_same_size_nothing_differs(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [30, 17, 22])
    whole = on_ranks(2, train, paths, str(tmp_path / "whole"), False, 0)
    first = on_ranks(2, train, paths, str(tmp_path / "run"), False, 4)
    rest = on_ranks(2, train, paths, str(tmp_path / "run"), True, 0)
    for all_, begun, ended in zip(whole, first, rest, strict=True):
        assert len(begun["users"]) == 4 and begun["users"] + ended["users"] == all_["users"]
        assert ended["rows"] == all_["rows"] and ended["weight"] == all_["weight"]


def test_taken_up_at_other_sizes_every_sequence_is_learned_once(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [30, 17, 22])
    first = on_ranks(2, train, paths, str(tmp_path / "run"), False, 3)
    second = on_ranks(3, train, paths, str(tmp_path / "run"), True, 4)
    third = [train(World(), paths, str(tmp_path / "run"), True, 0)]
    seen = [
        user for part in (first, second, third) for rank in part for batch in rank["users"] for user in batch
    ]
    assert sorted(seen) == list(range(69))
    stamps = {row[0]: row[3] for row in third[0]["rows"]}
    assert len(stamps) == len({user for user in range(69) if user % 7})
    assert sum(count for count, _ in stamps.values()) == np.count_nonzero(np.arange(69) % 7)
