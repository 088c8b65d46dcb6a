"""Checkpoints: any number of ranks to any other, and what happens when one cannot be written or read."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genrec.errors import ArtifactError, InputError
from tests.training.ranks import SLOW_S, START, ThreadWorld, impatient, in_threads, on_ranks
from training.embedding.optimizers import RowAdam, RowwiseAdagrad
from training.embedding.portable import mixed
from training.embedding.table import Rows
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.world import World
from training.shards import checkpoint, dense

FEATURES = (
    FeatureConfig("item", "item", 4),
    FeatureConfig("user", "user", 4),
    FeatureConfig("tag", "tag", 2),
)
SIZES = (1, 2, 3, 4, 8)


def owner(ids: np.ndarray, ranks: int) -> np.ndarray:
    return (mixed(ids) % np.uint64(ranks)).astype(int)


def all_rows(count: int = 400) -> dict[int, Rows]:
    """Per dimension; negative keys too, which no feature makes but a table takes."""
    draw, made = np.random.default_rng(0), {}
    for dim in (2, 4):
        ids = np.unique(
            np.concatenate((draw.integers(-(2**62), 2**62, count), [0, -1, 2**63 - 1, -(2**63) + 1]))
        )
        vectors, state = (draw.standard_normal((len(ids), w)).astype(np.float32) for w in (dim, 2 * dim + 1))
        marks = draw.integers(0, 2**32, (len(ids), 2)).astype(np.uint32)
        made[dim] = Rows(ids, vectors, state, marks)
    return made


def embeddings_of(
    world: World, rows: dict[int, Rows] | None = None, features: Any = FEATURES
) -> ShardedEmbeddings:
    """With those of `rows` that belong to this rank."""
    made = ShardedEmbeddings(features, world, RowAdam())
    for dim, given in (rows or {}).items():
        mine = owner(given.ids, world.ranks) == world.rank
        made.sharded[dim].table.put(Rows(*(each[mine] for each in given)))
    return made


def rows_of(embeddings: ShardedEmbeddings, dim: int) -> Rows:
    parts = list(embeddings.sharded[dim].table.export())
    return Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def save_all(folder: Path, ranks: int, rows: dict[int, Rows]) -> None:
    def work(world: World) -> None:
        made = embeddings_of(world, rows)
        made.stamp = 5
        checkpoint.save(
            folder, world, made, 5, {f"shard-{world.rank}": world.rank + 10}, {"w": torch.ones(2)}
        )

    in_threads(ranks, work)


def load_one(folder: Path, rank: int = 0, ranks: int = 1, features: Any = FEATURES) -> ShardedEmbeddings:
    world = ThreadWorld(rank, ranks, [], threading.Barrier(1))
    made = embeddings_of(world, features=features)
    checkpoint.load(folder, world, made)
    return made


@pytest.mark.parametrize("saved", SIZES)
def test_every_key_is_once_on_its_owner_at_any_other_size(
    saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With row, moments, counter and stamp; the loss of dynamicemb is this test's reason."""
    monkeypatch.setattr(checkpoint, "PART_BYTES", 1 << 11)  # several files per rank
    rows = all_rows()
    save_all(tmp_path, saved, rows)
    for ranks in SIZES:
        loaded = [load_one(tmp_path, rank, ranks) for rank in range(ranks)]
        for dim, expected in rows.items():
            found = [rows_of(each, dim) for each in loaded]
            for rank, each in enumerate(found):
                assert (owner(each.ids, ranks) == rank).all()
            together = Rows(*(np.concatenate(each) for each in zip(*found, strict=True)))
            order = np.argsort(together.ids)
            for each, same in zip(together, expected, strict=True):
                assert np.array_equal(each[order], same)


def test_a_rank_opens_only_the_files_it_needs(tmp_path: Path) -> None:
    save_all(tmp_path, 4, all_rows())
    for rank in (1, 3):
        for path in tmp_path.glob(f"*/{rank}.*.0.safetensors"):
            path.unlink()
    assert len(rows_of(load_one(tmp_path, 0, 2), 4).ids) > 100  # ranks 0 and 2 of the four
    with pytest.raises(ArtifactError, match=r"1\.2\.0\.safetensors: cannot be read"):
        load_one(tmp_path, 1, 2)


@pytest.mark.parametrize(("sizes", "files"), [((0, 8, 4), [0]), ((5, 8, 4), [1]), ((1, 2, 4), [1, 3]),
                                              ((2, 3, 4), [0, 1, 2, 3]), ((0, 6, 4), [0, 2])])  # fmt: skip
def test_the_papers_modulo_is_the_special_case(sizes: tuple[int, int, int], files: list[int]) -> None:
    assert checkpoint.files_for(*sizes) == files


def test_all_else_is_restored(tmp_path: Path) -> None:
    on_ranks(2, save_in_process, str(tmp_path))
    drawn, restored = zip(*on_ranks(2, restore_in_process, str(tmp_path)), strict=True)
    torch.manual_seed(0)
    torch.rand(3)  # drawn before the save
    assert drawn[0] == torch.rand(2).tolist() != drawn[1]
    for each in restored:
        assert each == (9, {"a": 100, "b": 101}, [0.0, 1.0, 2.0], 77)


def save_in_process(world: World, folder: str) -> None:
    torch.manual_seed(world.rank)
    torch.rand(3)
    made = embeddings_of(world, all_rows(10))
    made.stamp = 77
    position = {"ab"[world.rank]: 100 + world.rank}
    checkpoint.save(Path(folder), world, made, 9, position, {"w": torch.arange(3.0)})


def restore_in_process(world: World, folder: str) -> tuple[list[float], tuple[Any, ...]]:
    made = embeddings_of(world)
    found = checkpoint.load(Path(folder), world, made)
    return torch.rand(2).tolist(), (found.step, found.position, found.dense["w"].tolist(), made.stamp)


def save_and_die(folder: str, calls: int) -> None:
    """Save step 6 over step 5, and be killed at the `calls`-th call that touches the disk."""
    left = [calls]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call

    for name in ("fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    rows = {dim: each._replace(vectors=each.vectors + 1) for dim, each in all_rows(50).items()}
    checkpoint.save(Path(folder), World(), embeddings_of(World(), rows), 6, {}, {})
    os._exit(0)


def test_killed_at_any_moment_the_last_good_one_is_left(tmp_path: Path) -> None:
    old, outcomes = all_rows(50), []
    for calls in range(1, 20):
        folder = tmp_path / str(calls)
        save_all(folder, 1, old)
        process = START.Process(target=save_and_die, args=(str(folder), calls))
        process.start()
        process.join(60)
        saved = process.exitcode == 0
        found = rows_of(load_one(folder), 4)
        whole = [np.array_equal(found.vectors, old[4].vectors + new) for new in (0, 1)]
        assert sum(whole) == 1 and (whole[1] or not saved)
        outcomes.append(whole[1])
        checkpoint.save(folder, World(), embeddings_of(World(), old), 7, {}, {})  # and the next one succeeds
        assert sorted(each.name for each in folder.iterdir()) == ["000000007", "current.json"]
        if saved:
            break
    assert saved and outcomes[0] is False and outcomes[-1] is True and outcomes == sorted(outcomes)


def save_with_a_full_disk(world: World, folder: str) -> str:
    if world.rank == 1:
        sys.dont_write_bytecode = True  # what is cut off would be read by others
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))
    try:
        checkpoint.save(Path(folder), world, embeddings_of(world, all_rows()), 6, {}, {})
    except ArtifactError as error:
        return str(error)
    return "saved"


def test_a_disk_that_is_full_for_one_rank_leaves_the_last_good_one(tmp_path: Path) -> None:
    save_all(tmp_path, 2, all_rows())
    for said in on_ranks(2, save_with_a_full_disk, str(tmp_path)):  # any of them may be the one that is heard
        assert re.search("rank 1 could not save: .*File too large.*; the checkpoint before it stands", said)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["000000005", "current.json"]
    assert len(rows_of(load_one(tmp_path), 4).ids) == len(all_rows()[4].ids)


def save_to_a_slow_disk(world: World, folder: str) -> None:
    def slow(descriptor: int) -> None:
        os.fsync = real
        time.sleep(SLOW_S + 2)
        real(descriptor)

    real = os.fsync
    if world.rank == 0:
        os.fsync = slow
    checkpoint.save(Path(folder), impatient(world), embeddings_of(world, all_rows()), 6, {}, {})


@pytest.mark.long
def test_a_disk_that_is_slow_for_one_rank_is_waited_for(tmp_path: Path) -> None:
    on_ranks(2, save_to_a_slow_disk, str(tmp_path))
    assert len(rows_of(load_one(tmp_path), 4).ids) == len(all_rows()[4].ids)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("1.json", Path.unlink, r"1\.json: is missing: what rank 1 saved is not whole"),
        ("1.4.0.safetensors", Path.unlink, r"1\.4\.0\.safetensors: cannot be read"),
        ("1.4.0.safetensors", cut, r"1\.4\.0\.safetensors: has \d+ bytes, not the \d+ that were saved"),
        ("0.4.0.safetensors", flip, r"0\.4\.0\.safetensors: is not what was saved"),
        ("dense.safetensors", flip, r"dense\.safetensors: is not what was saved"),
        ("checkpoint.json", cut, r"checkpoint\.json: is not readable JSON"),
        ("../current.json", cut, r"current\.json: is not readable JSON"),
        ("../current.json", Path.unlink, r"checkpoint\.json: cannot be read"),
    ],
)
def test_what_is_damaged_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], says: str
) -> None:
    save_all(tmp_path, 2, all_rows())
    damage(tmp_path / "000000005" / name)
    with pytest.raises(ArtifactError, match=says):
        load_one(tmp_path)


def test_other_features_or_another_optimizer_are_refused(tmp_path: Path) -> None:
    save_all(tmp_path, 1, all_rows())
    renamed = (*FEATURES[:2], FeatureConfig("label", "tag", 2))
    with pytest.raises(ArtifactError, match=r"without label \(table tag, dimension 2\), with tag \(table"):
        load_one(tmp_path, features=renamed)
    with pytest.raises(ArtifactError, match=r"other features: with tag \(table tag, dimension 2\)$"):
        load_one(tmp_path, features=FEATURES[:2])
    with pytest.raises(ArtifactError, match="the same in another order"):
        load_one(tmp_path, features=FEATURES[::-1])
    with pytest.raises(ArtifactError, match="has the state of RowAdam, not of RowwiseAdagrad"):
        checkpoint.load(tmp_path, World(), ShardedEmbeddings(FEATURES, World(), RowwiseAdagrad()))
    with pytest.raises(InputError, match="have rows already"):
        checkpoint.load(tmp_path, World(), embeddings_of(World(), all_rows()))


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    save_all(tmp_path, 1, all_rows(5))
    with pytest.raises(ArtifactError, match="is saved already"):
        save_all(tmp_path, 1, all_rows(5))
    assert json.loads((tmp_path / "current.json").read_text()) == {"step": "000000005"}


def test_dense_weights_go_on_as_they_would_have() -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.Adam(model.parameters(), 0.1)

    def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).pow(2).sum().backward()
        optimizer.step()

    first, second = made(), made()
    learn(*first)
    dense.restore(*second, {name: value.clone() for name, value in dense.state_of(*first).items()})
    learn(*first)
    learn(*second)
    assert torch.equal(first[0].weight, second[0].weight)
    with pytest.raises(ArtifactError, match="does not fit this model"):
        dense.restore(torch.nn.Linear(4, 2), second[1], dense.state_of(*first))
