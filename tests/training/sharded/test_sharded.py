"""Several ranks over gloo against one process that has the global batch."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genrec.errors import InputError
from tests.training.pooling import means, sums
from tests.training.ranks import on_ranks
from training.embedding.optimizers import RowAdam, RowwiseAdagrad
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.lookup import Dedup
from training.sharded.step import TableStep
from training.sharded.world import PATIENCE_S, RankLost, World
from training.shards.sequences import Ragged

FEATURES = (
    FeatureConfig("history", "item", 8),
    FeatureConfig("candidate", "item", 8),
    FeatureConfig("user", "user", 8),
    FeatureConfig("tags", "tag", 4),
)
STEPS = 4


def takes_long(world: World, folder: str) -> bool:
    path = Path(folder) / "made"
    with world.lead_first():
        if world.rank == 0:
            time.sleep(PATIENCE_S + 3)
            path.touch()
        return path.exists()


@pytest.mark.long
def test_who_goes_first_may_take_longer_than_ranks_wait_for_a_message(tmp_path: Path) -> None:
    assert on_ranks(2, takes_long, str(tmp_path)) == [True, True]


class Model(torch.nn.Module):
    """A score per candidate: enough that every feature and weight matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.tags = torch.nn.Linear(16, 8), torch.nn.Linear(4, 8)

    def forward(self, found: dict[str, torch.Tensor]) -> torch.Tensor:
        query = torch.tanh(
            self.mix(torch.cat((found["history"], found["user"]), 1)) + self.tags(found["tags"])
        )
        return (query * found["candidate"]).sum(1)


def samples(step: int) -> list[dict[str, list[int]]]:
    """The global batch of a step: sequences of 0 to 30 items of 50, which thus repeat within and among ranks."""
    draw = np.random.default_rng([7, step])
    return [
        {
            "history": draw.integers(0, 50, draw.integers(0, 30)).tolist(),
            "candidate": draw.integers(0, 60, 1).tolist(),
            "user": [int(draw.integers(0, 2**60))],
            "tags": draw.integers(0, 5, 3).tolist(),
            "label": [int(draw.integers(0, 2))],
        }
        for _ in range(13)
    ]


def share(batch: list[dict], rank: int, ranks: int) -> list[dict]:
    """Uneven on purpose; of more than two ranks the last has nothing."""
    if ranks == 1:
        return batch
    cuts = [0, 2, len(batch)] if ranks == 2 else [0, 1, 9, len(batch), len(batch)]
    return batch[cuts[rank] : cuts[rank + 1]]


def ragged(rows: list[dict], name: str) -> Ragged:
    lists = [row[name] for row in rows]
    return Ragged(
        np.array([each for row in lists for each in row], np.int64), np.cumsum([0, *map(len, lists)])
    )


def train(
    world: World, settings: dict[str, Any], micro_batches: int = 1, largest_norm: float = math.inf
) -> dict[str, Any]:
    """A few steps; this rank's rows by dimension and id, the weights, and what was sent."""
    embeddings = ShardedEmbeddings(FEATURES, world, seed=1, **settings)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    step = TableStep(world, embeddings, model.parameters(), optimizer, largest_norm)
    totals = []
    for number in range(STEPS):
        mine = share(samples(number), world.rank, world.ranks)
        for rows in (mine[part::micro_batches] for part in range(micro_batches)):
            ids = {each.name: ragged(rows, each.name) for each in FEATURES}
            found = embeddings({name: each.values for name, each in ids.items()})
            found["history"] = means(found["history"], ids["history"])
            found["tags"] = sums(found["tags"], ids["tags"])
            labels = torch.tensor([row["label"][0] for row in rows], dtype=torch.float32)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(found), labels, reduction="sum")
            step.add(loss if rows else None, len(rows))
        totals.append(step.update())
    tables = {size: each.table for size, each in embeddings.sharded.items()}
    rows = {size: {} for size in tables}
    for size, table in tables.items():
        for part in table.export():
            for i, key in enumerate(part.ids.tolist()):
                rows[size][key] = (part.vectors[i], part.state[i], tuple(part.marks[i].tolist()))
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    return {"rows": rows, "weights": weights, "totals": totals, "traffic": vars(embeddings.traffic)}


def assert_same(ranks: list[dict[str, Any]], alone: dict[str, Any], marks: bool = True) -> None:
    for each in ranks:
        assert each["totals"] == alone["totals"]
        for name, weight in alone["weights"].items():
            np.testing.assert_allclose(each["weights"][name], weight, rtol=1e-4, atol=1e-6)
    for size, expected in alone["rows"].items():
        found = [key for each in ranks for key in each["rows"][size]]
        assert sorted(found) == sorted(expected)  # every id on one rank
        assert len(ranks) == 1 or all(each["rows"][size] for each in ranks)
        for each in ranks:
            for key, (vector, state, mark) in each["rows"][size].items():
                np.testing.assert_allclose(vector, expected[key][0], rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(state, expected[key][1], rtol=1e-3, atol=1e-8)
                assert mark == expected[key][2] or not marks


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(0.05), RowAdam(0.01)], ids=["adagrad", "adam"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_end_where_one_process_ends(ranks: int, optimizer: RowwiseAdagrad | RowAdam) -> None:
    settings = {"optimizer": optimizer}
    assert_same(on_ranks(ranks, train, settings), train(World(), settings))


def test_accumulated_batches_are_one_update() -> None:
    alone = train(World(), {})
    assert_same([train(World(), {}, 3)], alone, marks=False)
    assert_same(on_ranks(2, train, {}, 3), alone, marks=False)


def test_the_norm_is_that_of_all_ranks_and_ids() -> None:
    """Clipped on one process or on two, in one batch or in parts, it is the same update, and another than unclipped."""
    alone = train(World(), {}, largest_norm=0.01)
    assert_same(on_ranks(2, train, {}, 1, 0.01), alone)
    assert_same([train(World(), {}, 3, 0.01)], alone, marks=False)
    with pytest.raises(AssertionError):
        assert_same([train(World(), {})], alone)


@pytest.mark.parametrize("largest", [0.5, 50.0])
def test_clipping_is_torchs(largest: float) -> None:
    """Against clip_grad_norm_ over the weight and a plain table, with SGD; a repeated id counts by its sum."""
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], World(), RowAdam(0.1))
    weight, ids = torch.nn.Parameter(torch.arange(1.0, 5.0)), np.array([3, 5, 3, 9])
    table = torch.from_numpy(embeddings.sharded[4].table.look_up(np.array([3, 5, 9]))).requires_grad_()
    step = TableStep(World(), embeddings, [weight], torch.optim.SGD([weight], 0.1), largest)
    step.add((embeddings({"user": ids})["user"] @ weight).exp().sum(), 4)
    told: list[float] = []
    step.embeddings.step = told.append  # type: ignore[method-assign]  # the scale that rows are given
    before = weight.detach().clone().requires_grad_()
    (table[[0, 1, 0, 2]] @ before).exp().mean().backward()
    torch.nn.utils.clip_grad_norm_([before, table], largest)
    step.update()
    torch.testing.assert_close(weight.detach(), before.detach() - 0.1 * before.grad)
    ours = embeddings.sharded[4]._summed()[0][1] * told[0]
    torch.testing.assert_close(torch.from_numpy(ours), table.grad)


def test_each_stage_of_deduplication_saves_its_part() -> None:
    """The answer is the same without; the counts are those of the batches."""
    stages = {(a, b): Dedup(a, b) for a in (False, True) for b in (False, True)}
    alone = train(World(), {})
    found = {key: on_ranks(2, train, {"dedup": dedup}) for key, dedup in stages.items()}
    for each in found.values():
        assert_same(each, alone, marks=False)
    cost = {
        key: {name: sum(rank["traffic"][name] for rank in each) for name in each[0]["traffic"]}
        for key, each in found.items()
    }
    none, both = cost[False, False], cost[True, True]
    asked = sum(len(row[f.name]) for step in range(STEPS) for row in samples(step) for f in FEATURES)
    assert none["ids_asked"] == both["ids_asked"] == none["rows_read"] == asked
    for first in (False, True):  # the second stage sends nothing less
        assert cost[first, False]["bytes_sent"] == cost[first, True]["bytes_sent"]
    assert cost[True, False]["bytes_sent"] < none["bytes_sent"] * 0.7
    assert both["rows_read"] < cost[True, False]["rows_read"] < none["rows_read"]
    owned = {
        step: {(f.table, i) for row in samples(step) for f in FEATURES for i in row[f.name]}
        for step in range(STEPS)
    }
    assert both["rows_read"] == sum(map(len, owned.values()))


def nan_on_one(world: World) -> str:
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], world)
    weight = torch.nn.Parameter(torch.ones(4))
    step = TableStep(world, embeddings, [weight], torch.optim.SGD([weight], 0.1))
    ids = np.arange(20)
    for bad in (True, False):
        before = embeddings.sharded[4].table.read(np.arange(20))
        found = embeddings({"user": ids})["user"] @ weight
        step.add((found * (float("nan") if bad and world.rank == 1 else 1.0)).sum(), 20)
        if bad:
            table, said = embeddings.sharded[4].table, ""
            before = table.vectors(table.index.items()[1])
            try:
                step.update()
            except InputError as error:
                said = str(error)
            assert np.array_equal(table.vectors(table.index.items()[1]), before) and (weight == 1).all()
        else:
            step.update()  # the next batch is trained as if nothing had been
            assert np.isfinite(table.vectors(table.index.items()[1])).all() and (weight != 1).all()
    return said


def test_a_gradient_of_nan_reaches_no_table_on_any_rank() -> None:
    for said in on_ranks(2, nan_on_one):
        assert "NaN" in said and "for rank 1;" in said


def test_a_step_without_a_sample_changes_nothing_and_the_next_is_as_if_it_had_not_been() -> None:
    world = World()
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], world)
    weight = torch.nn.Parameter(torch.ones(4))
    step = TableStep(world, embeddings, [weight], torch.optim.SGD([weight], 0.1))
    found = embeddings({"user": np.arange(3)})["user"] @ weight
    before = embeddings.sharded[4].table.read(np.arange(3))
    step.add(found.sum(), 0)
    with pytest.raises(InputError, match="batch: has no sample on any rank"):
        step.update()
    embeddings({"user": np.arange(3)})
    step.add(None, 5)
    assert step.update() == 5 and step.loss == 0 and (weight == 1).all()
    assert np.array_equal(embeddings.sharded[4].table.read(np.arange(3)), before)


def bad_id_on_one(world: World) -> None:
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], world)
    ids = np.array([-7 if world.rank else 7])
    embeddings({"user": ids})


def test_a_bad_id_is_named_and_the_others_do_not_hang() -> None:
    lost, refused = on_ranks(2, told, bad_id_on_one)
    assert refused.startswith("InputError: user: has id -7") and lost.startswith(
        "RankLost: rank 0: another rank"
    )


def told(world: World, work: Callable[[World], None]) -> str:
    try:
        work(world)
    except (InputError, RankLost) as error:
        world.group = None  # gone without a goodbye
        return f"{type(error).__name__}: {error}"
    return "ended"


def dies(world: World) -> str:
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], world)
    ids = np.arange(20)
    embeddings({"user": ids})
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            embeddings({"user": ids})
    except RankLost as error:
        world.group = None  # nobody is left to say goodbye to
        return str(error)


def test_when_a_rank_dies_the_others_say_so() -> None:
    said, _ = on_ranks(2, dies, may_die=(1,))
    assert said.startswith("rank 0: another rank died") and "Timed out" not in said


def test_features_must_be_given_just_as_configured() -> None:
    embeddings = ShardedEmbeddings([FeatureConfig("user", "user", 4)], World())
    nothing = np.zeros(0, np.int64)
    with pytest.raises(InputError, match="features: lacks 'user'"):
        embeddings({})
    with pytest.raises(InputError, match=r"features: has 'item' .*just user"):
        embeddings({"user": nothing, "item": nothing})
