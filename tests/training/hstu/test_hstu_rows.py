"""Rows by id of an HSTU ranker in training: one look-up for items and features' values, and what plain tables learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genrec.errors import ArtifactError
from genrec.nn.hstu import HstuConfig, HstuRanker
from tests.training.hstu.test_hstu import ITEMS, MOST, some_model, some_ratings
from training.embedding.optimizers import RowAdam
from training.hstu.batches import Sample
from training.hstu.further import FurtherRun
from training.hstu.ratings import Ratings
from training.hstu.rows import FEATURE, ITEM, RowsById
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.hstu.train import train_hstu
from training.launch import on_ranks
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.lookup import ShardedTable
from training.sharded.world import World
from training.shards import checkpoint

SETTINGS = HstuSettings(tokens=400, averaging=0.9, unknown=0.0)
FEATURES, SIZE, STEPS = 7, 16, 4
UNSEEN = 7  # a value of a feature that no user has


def told(features: int) -> Ratings:
    """Ratings of users of whom some have no feature, and nobody the last value; of 0, there are none at all."""
    ratings = some_ratings()
    values = np.where(ratings.features == UNSEEN, 0, ratings.features)[:, : 2 * bool(features)]
    values[::3] = 0
    return replace(ratings, features=values, sizes=features)


def fresh_model(features: int) -> HstuRanker:
    torch.manual_seed(0)
    config = HstuConfig(ITEMS, (8, 8), features, MOST, SIZE, layers=1, dropout=0.0)
    return HstuRanker(config, torch.randint(0, 8, (ITEMS, 2)))


def some_steps(world: World, features: int, whole: bool) -> dict[str, Any]:
    """Losses of a few updates, and the average's tables behind them; not `whole`: updates are of one sequence each."""
    run = HstuRun(world, told(features), fresh_model(features), SETTINGS, 0)
    batches = [[each] for each in run.batches(0)[0]] if not whole else list(run.batches(0))
    losses = [run.step(batch, 0.0) for batch in batches[:STEPS]]
    run.fill_average()
    weights = {name: each.numpy() for name, each in run.average.state_dict().items()}
    return {"losses": losses, "weights": weights}


@pytest.mark.parametrize("features", [FEATURES, 0])
@pytest.mark.parametrize("whole", [True, False], ids=["batches", "a-sequence-each"])
def test_a_rank_with_no_sequence_and_users_without_features_change_nothing(
    features: int, whole: bool
) -> None:
    alone, two = some_steps(World(), features, whole), on_ranks(2, some_steps, features, whole, threads=2)
    np.testing.assert_allclose(two["losses"], alone["losses"], rtol=1e-5)
    for name, each in alone["weights"].items():
        np.testing.assert_allclose(two["weights"][name], each, rtol=1e-3, atol=1e-5, err_msg=name)
    rows = alone["weights"]["of_feature.weight"]
    assert rows.shape == (features + 1, SIZE) and not rows[0].any()
    if whole and features:
        assert rows[1:UNSEEN].any(1).all() and not rows[UNSEEN].any(), "a value never seen is of zeros"


def test_one_look_up_of_a_pass_finds_items_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    look_up = ShardedTable.look_up

    def counted(table: ShardedTable, ids: list[np.ndarray], stamp: int) -> Any:
        asked.append([len(each) for each in ids])
        return look_up(table, ids, stamp)

    monkeypatch.setattr(ShardedTable, "look_up", counted)
    run = HstuRun(World(), told(FEATURES), fresh_model(FEATURES), SETTINGS, 0)
    (batch, *_) = run.batches(0)
    run.step(batch, 0.0)
    wanted = [sum(each.size(0) for each in batch), int((run.ratings.features[users(batch)] > 0).sum())]
    assert asked == [wanted] and all(wanted)


def users(batch: list[Sample]) -> list[int]:
    return [each.user for each in batch]


def test_rows_and_gradients_are_those_of_plain_tables() -> None:
    """Items and features of equal numbers have rows of their own; tokens that have both, or neither, are no others."""
    model, draw = some_model(), torch.Generator().manual_seed(0)
    rows = RowsById(World(), SIZE, RowAdam(averaging=0.9), 0, 0)
    rows.begin_with(model)
    item, feature = (torch.randint(0, FEATURES + 1, (50,), generator=draw) for _ in range(2))
    factor = torch.randn(50, SIZE, generator=draw)
    ours, plain = rows(item, feature), model.by_id(item, feature)
    assert torch.equal(ours, plain) and not ours[(item == 0) & (feature == 0)].any()
    (ours * factor).sum().backward()
    (plain * factor).sum().backward()
    rows.embeddings.collect()
    found = rows.embeddings.square
    grads = [each.weight.grad for each in (model.of_item, model.of_feature)]
    assert found == pytest.approx(
        sum(float(each.square().sum()) for each in grads if each is not None), rel=1e-5
    )


def test_they_begin_with_a_model_and_fill_it_again() -> None:
    model, other = some_model(), fresh_model(FEATURES)
    rows = RowsById(World(), SIZE, RowAdam(averaging=0.9), 0, 0)
    rows.begin_with(model)
    rows.average_into(other)
    for name in ("of_item.weight", "of_feature.weight"):
        assert torch.equal(other.state_dict()[name], model.state_dict()[name])


def test_a_value_that_nobody_met_stands_still_in_further_training() -> None:
    ratings, model = told(FEATURES), some_model()
    before = model.of_feature.weight.detach().clone()
    run = FurtherRun(World(), ratings, np.arange(ratings.offsets[20]), model, SETTINGS, 0)
    for batch in run.batches(0):
        run.step(batch, 0.0)
    same = (run.kept().of_feature.weight == before).all(1)
    assert same.nonzero()[:, 0].tolist() == [0, UNSEEN]


def test_a_checkpoint_of_items_alone_is_refused(tmp_path: Path) -> None:
    """As one of a version before the features' values were in it."""
    world, adam = World(), RowAdam(averaging=0.9)
    older = ShardedEmbeddings([FeatureConfig(ITEM, ITEM, SIZE)], world, adam)
    older({ITEM: np.arange(ITEMS)})
    tmp_path.joinpath("state").mkdir()
    checkpoint.save(tmp_path / "state", world, older, 3, {}, {"progress": torch.zeros(1, dtype=torch.uint8)})
    said = rf"other features: without {FEATURE} \(table {FEATURE}, dimension {SIZE}\); without this folder"
    with pytest.raises(ArtifactError, match=said):
        train_hstu(world, told(FEATURES), fresh_model(FEATURES), SETTINGS, tmp_path / "state")
