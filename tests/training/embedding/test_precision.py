"""Hot rows in fp32 and cold ones in fp16, beside a twin that has all in fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.embedding.test_table import kernels  # noqa: F401  (a fixture)
from training.embedding import arrays
from training.embedding.arrays import Chunks
from training.embedding.kernels import Kernels
from training.embedding.optimizers import RowAdam, RowwiseAdagrad
from training.embedding.table import DynamicTable
from training.embedding.vectors import LARGEST_HALF, MixedVectors, halved
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.world import World
from training.shards import checkpoint

EVERY = 4
HOT, LATE, FIRST_LATE = np.arange(5), np.arange(5, 8), 20  # looked up at every step; at every step, but later
STEPS = 60


def learn(tables: list[DynamicTable], first: int = 1, last: int = STEPS) -> dict[int, int]:
    """The same look-ups and gradients for all tables; how often each id was updated."""
    updates: dict[int, int] = {}
    for step in range(first, last + 1):
        draw = np.random.default_rng(step)
        once = draw.integers(8, 200, 6)  # cold
        ids = np.unique(np.concatenate((HOT, LATE if step >= FIRST_LATE else LATE[:0], once)))
        gradients = draw.standard_normal((len(ids), 8)).astype(np.float32)
        for table in tables:
            table.apply(table.rows_of(ids, step), gradients)
            table.sweep(step)
        for each in ids.tolist():
            updates[each] = updates.get(each, 0) + 1
    return updates


def settle(table: DynamicTable, first: int) -> None:
    """Look at every row once."""
    for step in range(first, first + EVERY):
        table.sweep(step)


def hot_ids(table: DynamicTable) -> set[int]:
    ids, rows = table.index.items()
    assert isinstance(table.values, MixedVectors)
    return set(ids[table.values.alike(rows)[0]].tolist())


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(0.1), RowAdam(0.01)])
@pytest.mark.parametrize("chunk_bytes", [1 << 10, 16 << 20], ids=["many chunks", "one chunk"])
def test_hot_rows_are_the_twins_and_cold_ones_rounded(
    kernels: Kernels,  # noqa: F811
    optimizer: RowwiseAdagrad | RowAdam,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk_bytes)
    table = DynamicTable(8, optimizer, kernels=kernels, hot_every=EVERY)
    twin = DynamicTable(8, optimizer, kernels=kernels)
    learn([table, twin], last=FIRST_LATE - 1)
    for each in LATE:  # looked up once before, they have become cold
        table.look_up(np.array([each]), 1), twin.look_up(np.array([each]), 1)
    settle(table, FIRST_LATE)
    assert hot_ids(table) == set(HOT.tolist())
    updates = learn([table, twin], FIRST_LATE)
    settle(table, STEPS)
    assert hot_ids(table) == {*HOT.tolist(), *LATE.tolist()}  # moved both ways
    assert np.array_equal(table.read(HOT), twin.read(HOT))
    ids = np.sort(twin.index.items()[0])
    ours, wanted = table.read(ids), twin.read(ids)
    times = np.array([updates.get(int(each), 0) for each in ids]) + FIRST_LATE  # roundings at most
    assert (np.abs(ours - wanted).max(1) <= times * np.abs(wanted).max(1) * 2.0**-10).all()
    assert (ours != wanted).any()
    places = [each.index.find(ids) for each in (table, twin)]
    for mine, theirs in zip((table.state, table.marks), (twin.state, twin.marks), strict=True):
        assert np.array_equal(mine.read(places[0]), theirs.read(places[1]))


def test_eviction_frees_vectors_and_who_comes_begins_hot(kernels: Kernels) -> None:  # noqa: F811
    table, plain = (DynamicTable(8, kernels=kernels, hot_every=every) for every in (EVERY, 0))
    learn([table])
    values = table.values
    held = values.hot.held + values.cold.held
    gone = table.evict(20, "lfu")
    assert held - len(gone) == values.hot.held + values.cold.held == len(table) == 20
    assert {*HOT.tolist(), *LATE.tolist()} <= hot_ids(table)
    given = values.hot.given
    fresh = np.arange(1000, 1000 + given - values.hot.held)  # as many as there are free places
    assert np.array_equal(table.look_up(fresh), plain.look_up(fresh))
    assert values.hot.given == given and set(fresh.tolist()) <= hot_ids(table)
    assert table.read(np.array([-5])).tolist() == [[0.0] * 8]


def test_cold_rows_take_half_of_the_bytes() -> None:
    bytes_per_key = {}
    for every in (0, EVERY):
        table = DynamicTable(64, hot_every=every, room=5000)
        for step in range(1, 51):
            table.rows_of(np.arange(100 * step, 100 * step + 100), step)
            table.sweep(step)
        bytes_per_key[every] = table.bytes_per_key
    beside = 64 * 4 * 16 * 100 / 5000  # vectors that were hot at once, and are free
    assert bytes_per_key[0] - 64 * 2 + 4 <= bytes_per_key[EVERY] <= bytes_per_key[0] - 64 * 2 + 4 + beside


def test_what_fp16_cannot_hold_saturates() -> None:
    assert halved(np.array([1e9, -1e9, 1.0], np.float32)).tolist() == [LARGEST_HALF, -LARGEST_HALF, 1.0]
    around = Chunks.around(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert around.read(np.array([2, 0], np.int32)).tolist() == [[4, 5], [0, 1]]


def trained(folder: Path, first: int, last: int, resume: bool) -> tuple[ShardedEmbeddings, dict[int, list]]:
    """Sharded tables after the steps, taken up from or saved to `folder`; and all rows by id."""
    made = ShardedEmbeddings([FeatureConfig("item", "item", 8)], World(), RowAdam(0.01), hot_every=EVERY)
    if resume:
        checkpoint.load(folder, World(), made)
    for step in range(first, last):
        draw = np.random.default_rng(step)
        ids = np.concatenate((HOT, draw.integers(8, 200, 6)))
        found = made({"item": ids})["item"]
        (found * torch.from_numpy(draw.standard_normal(found.shape).astype(np.float32))).sum().backward()
        made.collect()
        made.step()
    rows = {}
    for part in made.sharded[8].table.export():
        for each in zip(*part, strict=True):
            rows[int(each[0])] = [part.vectors.dtype, *(value.tolist() for value in each[1:])]
    return made, rows


def test_a_checkpoint_keeps_who_is_cold(tmp_path: Path) -> None:
    whole = trained(tmp_path, 0, 40, False)[1]
    begun, rows = trained(tmp_path, 0, 25, False)
    checkpoint.save(tmp_path, World(), begun, 25, {}, {})
    assert trained(tmp_path, 0, 0, True)[1] == rows
    assert {np.dtype(np.float16), np.dtype(np.float32)} == {each[0] for each in rows.values()}
    assert trained(tmp_path, 25, 40, True)[1] == whole
    plain = ShardedEmbeddings([FeatureConfig("item", "item", 8)], World(), RowAdam(0.01))
    checkpoint.load(tmp_path, World(), plain)
    ids = np.array(list(rows), np.int64)
    assert plain.sharded[8].table.read(ids).tolist() == [each[1] for each in rows.values()]


def in_and_out(left_at: int) -> dict[int, list[float]]:
    """Vectors by id of rows that get hot and cold again; after step `left_at` another table goes on with them."""
    table = DynamicTable(8, RowAdam(0.01), hot_every=EVERY)
    for step in range(1, 121):
        draw = np.random.default_rng(step)
        ids = np.flatnonzero(draw.random(160) < np.linspace(0.02, 0.5, 160))
        table.apply(table.rows_of(ids, step), draw.standard_normal((len(ids), 8)).astype(np.float32))
        table.sweep(step)
        if step == left_at:
            before, table = table, DynamicTable(8, RowAdam(0.01), hot_every=EVERY)
            for part in before.export(most=10):
                table.put(part)
    ids = np.sort(table.index.items()[0])
    return dict(zip(ids.tolist(), table.read(ids).tolist(), strict=True))


def test_rows_taken_up_are_swept_when_they_would_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of many chunks are swept at a step: a row in another one would be hot or cold at other updates."""
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 1 << 12)
    assert in_and_out(left_at=50) == in_and_out(left_at=0)
