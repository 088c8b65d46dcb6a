"""Batches of equal cost: nothing lost, nothing twice, equally many steps, and how busy ranks are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from tests.training.pooling import sums
from tests.training.ranks import in_threads, on_ranks
from tests.training.shards.test_sequences import COLUMNS, write_shards
from training.balance import BalancedBatches, Cost, assign, cut
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.step import TableStep
from training.sharded.world import World
from training.shards import sequences
from training.shards.sequences import Chunk, Sequences, read_shards

positive = st.floats(0.1, 100)


@given(costs=st.lists(positive, min_size=1, max_size=12), target=positive)
def test_a_cut_comes_closest_to_the_target(costs: list[float], target: float) -> None:
    sums = np.cumsum(costs)
    found = cut(np.array(costs), target)
    assert abs(sums[found - 1] - target) <= np.abs(sums - target).min() + 1e-9


@given(costs=st.lists(positive, max_size=40), ranks=st.integers(1, 5))
@settings(deadline=None)
def test_the_costliest_goes_to_the_emptiest(costs: list[float], ranks: int) -> None:
    owners, loads = assign(np.array(costs), ranks), [0.0] * ranks
    for place in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        assert owners[place] == loads.index(min(loads))
        loads[owners[place]] += costs[place]


def test_half_of_the_work_of_as_many_tokens_as_the_crossover_is_attention() -> None:
    lengths = np.array([0, 50, 100, 200])
    assert Cost(100.0).of(lengths).tolist() == [0, 75, 200, 600]
    assert Cost().of(lengths).tolist() == lengths.tolist()


def batches_of(world: World, paths: list[Path], target: float, **options: Any) -> list[list[int]]:
    """Users of every step of this rank; what came must be whole."""
    position = options.pop("position", None)
    made = BalancedBatches(
        world,
        read_shards(paths, COLUMNS, world.rank, world.ranks, position),
        COLUMNS,
        "items",
        target,
        **options,
    )
    steps = []
    for batch in made:
        items, users = batch.columns["items"], batch.columns["user"].values.tolist()
        for i, user in enumerate(users):
            assert items.values[items.offsets[i] : items.offsets[i + 1]].tolist() == [user] * (user % 7)
        assert made.loads[world.rank] == len(items.values)
        steps.append(users)
    return steps


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("target", [1, 10, 1000])
def test_every_sequence_comes_once_and_all_ranks_take_equally_many_steps(
    tmp_path: Path, ranks: int, exchange: bool, target: float
) -> None:
    """Shards of very different sizes, one rank without any; sequences beyond the target; a tail below it."""
    paths = write_shards(tmp_path, [41, 3, 7])
    found = in_threads(ranks, lambda world: batches_of(world, paths, target, exchange=exchange))
    assert len({len(steps) for steps in found}) == 1
    assert sorted(user for steps in found for batch in steps for user in batch) == list(range(51))
    # Those with few sequences wait for the others with empty batches
    if ranks > 1 and not exchange and target < 1000:
        assert any(not batch for steps in found for batch in steps)


def test_over_gloo_sequences_arrive_whole(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [30, 12])
    in_processes = on_ranks(2, batches_of, paths, 15.0)
    assert in_processes == in_threads(2, lambda world: batches_of(world, paths, 15.0))


def test_no_more_is_read_than_the_next_batch_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read waits in memory, and shards need not fit there."""
    monkeypatch.setattr(sequences, "CHUNK_ROWS", 3)
    read = []

    def chunks() -> Iterator[Chunk]:
        for chunk in read_shards(write_shards(tmp_path, [60]), COLUMNS):
            read.append(chunk.first + chunk.sequences.count)
            yield chunk

    made = BalancedBatches(World(), chunks(), COLUMNS, "items", 12.0)
    waiting = [read[-1] - made.position["0.parquet"] for _ in made]
    assert read[-1] == 60 and max(waiting) <= 2 * 3


def drawn_and_rest(world: World, paths: list[Path]) -> tuple[list[int], dict[str, int]]:
    made = BalancedBatches(
        world, read_shards(paths, COLUMNS, world.rank, world.ranks), COLUMNS, "items", 12.0
    )
    users = []
    for _, batch in zip(range(3), made, strict=False):
        users += batch.columns["user"].values.tolist()
    return users, made.position


def test_after_a_stop_the_rest_comes_at_any_number_of_ranks(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [25, 30])
    found = in_threads(2, lambda world: drawn_and_rest(world, paths))
    seen = [user for users, _ in found for user in users]
    position = {shard: rows for _, each in found for shard, rows in each.items()}
    for ranks in (1, 2, 3):
        rest = in_threads(ranks, lambda world: batches_of(world, paths, 12.0, position=dict(position)))
        assert sorted(seen + [user for steps in rest for batch in steps for user in batch]) == list(range(55))


def busy(loads: np.ndarray) -> float:
    """The share of the time that ranks work, when all wait for the slowest."""
    return float(loads.mean() / loads.max())


@pytest.mark.parametrize(("ranks", "by_tokens"), [(8, 0.95), (64, 0.90)])
def test_an_exchange_keeps_ranks_busy_where_tokens_alone_do_not(ranks: int, by_tokens: float) -> None:
    """Log-normal lengths, mean 600, at most 3,000, half of all work quadratic; 128 sequences per rank."""
    draw, ratios = np.random.default_rng(0), {"tokens": [], "exchange": []}
    for _ in range(10):
        lengths = np.clip(draw.lognormal(np.log(600) - 0.5, 1.0, (ranks, 200)), 1, 3000).astype(int)
        mean, square = lengths.mean(), (lengths.astype(float) ** 2).mean()
        cost = Cost(square / mean)
        taken = [each[: cut(each, 128 * mean)] for each in lengths]
        drawn = [cost.of(each) for each in taken]
        together = np.concatenate(drawn)
        ratios["tokens"].append(busy(np.array([each.sum() for each in drawn])))
        ratios["exchange"].append(busy(np.bincount(assign(together, ranks), together, ranks)))
    assert np.mean(ratios["exchange"]) > 0.999 and np.mean(ratios["tokens"]) < by_tokens


def train(world: World, batches: Any) -> tuple[np.ndarray, list[list[int]]]:
    """A weight and rows learn from balanced batches; the weight, and the users of every step."""
    embeddings = ShardedEmbeddings([FeatureConfig("items", "item", 4)], world, seed=2)
    weight = torch.nn.Parameter(torch.arange(4.0))
    step, users = TableStep(world, embeddings, [weight], torch.optim.SGD([weight], 0.5)), []
    for batch in batches:
        items = batch.columns["items"]
        found = sums(embeddings({"items": items.values})["items"], items) @ weight
        step.add(((found - 1) ** 2).sum(), batch.count)
        step.update()
        users.append(batch.columns["user"].values.tolist())
    return weight.detach().numpy(), users


def train_balanced(world: World, paths: list[Path]) -> tuple[np.ndarray, list[list[int]]]:
    chunks = read_shards(paths, COLUMNS, world.rank, world.ranks)
    return train(world, BalancedBatches(world, chunks, COLUMNS, "items", 20.0, cost=Cost(5.0)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_uneven_batches_train_as_one_process_on_the_global_batch(tmp_path: Path, ranks: int) -> None:
    paths = write_shards(tmp_path, [20, 9, 14, 3])
    found = on_ranks(ranks, train_balanced, paths)
    everything = Sequences.join([chunk.sequences for chunk in read_shards(paths, COLUMNS)])
    sizes = [[len(batch) for batch in steps] for _, steps in found]
    assert any(len(set(step)) > 1 for step in zip(*sizes, strict=True))  # weights by samples matter
    steps = [np.concatenate(step).astype(int) for step in zip(*(users for _, users in found), strict=True)]
    alone, _ = train(World(), [everything.take(step) for step in steps])
    for weight, _ in found:
        np.testing.assert_allclose(weight, alone, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_a_target_is_refused() -> None:
    with pytest.raises(InputError, match="target: is 0"):
        BalancedBatches(World(), [], COLUMNS, "items", 0)
    with pytest.raises(InputError, match=r"tokens: is 'history' .*user, items"):
        BalancedBatches(World(), [], COLUMNS, "history", 5)
