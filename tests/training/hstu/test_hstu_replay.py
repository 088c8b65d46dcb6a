"""An HSTU ranker that is trained further learns older ratings again between the new ones, in small updates."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu
from tests.training.hstu.test_hstu import MOST, some_model, some_ratings
from tests.training.hstu.test_hstu_further import NONE, SETTINGS, UNMET, loss_of, with_ratings
from training.hstu.batches import events_of, further_samples
from training.hstu.further import BATCH, REPLAY, FurtherRun, newer_and_older, train_further
from training.hstu.ratings import Ratings
from training.sharded.world import World

FILE = 2


def some_files() -> Ratings:
    """Of every fourth user the newest event is in file 3, the ten before it in file 2, five in file 1."""
    ratings = some_ratings()
    file = np.zeros(len(ratings.items), np.int64)
    for begin, end in zip(ratings.offsets[:-1:4].tolist(), ratings.offsets[1::4].tolist(), strict=True):
        for number, newest in ((1, 16), (2, 11), (3, 1)):
            file[max(begin, end - newest) : end] = number
    return replace(ratings, file=file)


def test_older_ones_are_all_of_some_users_before_the_file() -> None:
    ratings = some_files()
    learnt, older = newer_and_older(ratings, FILE, 0)
    assert learnt.tolist() == [event for event, file in enumerate(ratings.file) if file == FILE]
    users, before = np.repeat(np.arange(len(ratings)), np.diff(ratings.offsets)), ratings.file < FILE
    drawn = {*users[older].tolist()}
    assert older.tolist() == [event for event in range(len(users)) if before[event] and users[event] in drawn]
    spare = max(int((before & (users == user)).sum()) for user in drawn)
    assert REPLAY * len(learnt) <= len(older) < REPLAY * len(learnt) + spare
    for seed, same in ((0, True), (1, False)):
        assert np.array_equal(newer_and_older(ratings, FILE, seed)[1], older) == same
    all_new = replace(ratings, file=np.where(ratings.file == FILE, FILE, 0))
    few = np.flatnonzero(all_new.file == 0)[:10]
    mostly = replace(all_new, file=np.where(np.isin(np.arange(len(users)), few), 0, FILE))
    assert newer_and_older(mostly, FILE, 0)[1].tolist() == few.tolist(), "there are no more"


def test_all_are_asked_once_and_updates_are_small() -> None:
    ratings = some_files()
    learnt, older = newer_and_older(ratings, FILE, 0)
    both = np.sort(np.concatenate((learnt, older)))
    run = FurtherRun(World(), ratings, both, some_model(), SETTINGS, 0)
    found = [events_of(batch) for batch in run.batches(0)]
    assert sorted(np.concatenate(found).tolist()) == both.tolist()
    features = ratings.features.shape[1]
    sizes = [[each.size(features) for each in batch] for batch in run.batches(0)]
    least = BATCH * SETTINGS.tokens
    assert all(sum(each) >= least > sum(each[:-1]) for each in sizes[:-1])
    mixed = [np.isin(each, learnt).any() and np.isin(each, older).any() for each in found]
    assert sum(mixed) > len(found) / 4


def test_what_was_learnt_before_is_not_forgotten() -> None:
    """Users who come back like now what they did not: others still like what they did."""
    ratings = some_files()
    learnt, older = newer_and_older(ratings, FILE, 0)
    turned = ratings.ratings.copy()
    turned[learnt] = ratings.levels + 1 - turned[learnt]
    ratings, losses = replace(ratings, ratings=turned), {}
    samples = further_samples(ratings, older, MOST)
    for name, again in {"with": older, "without": NONE}.items():
        kept, report = train_further(World(), ratings, learnt, again, some_model(), SETTINGS)
        assert (report["events"], report["replayed"]) == (len(learnt), len(again))
        losses[name] = loss_of(kept, ratings, samples)
    assert losses["with"] < losses["without"]


def test_equal_seeds_end_alike_and_rows_in_no_batch_stand_still() -> None:
    ratings = some_files()
    learnt, older = newer_and_older(ratings, FILE, 0)
    everyones = ratings.users_of(np.arange(len(ratings.items)))
    users = np.isin(everyones, ratings.users_of(np.concatenate((learnt, older))))
    items = np.where(users & (ratings.items == UNMET), UNMET + 1, ratings.items)
    ratings = replace(ratings, items=items)
    before = some_model().of_item.weight.detach().numpy()
    after = [train_further(World(), ratings, learnt, older, some_model(), SETTINGS, 3)[0] for _ in range(2)]
    for name, each in after[0].state_dict().items():
        assert np.array_equal(each, after[1].state_dict()[name]), name
    same = (before == after[0].of_item.weight.numpy()).all(1)
    met = np.unique(items[users])
    assert same[UNMET + 1] and not same[met + 1].any()


def test_settings_of_another_model_are_refused_by_name(
    tiny_hstu: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = with_ratings(Path(shutil.copytree(tiny_hstu, tmp_path / "artifact")), 12)
    events, mine = tmp_path / "events.csv", tmp_path / "mine.json"
    item, config = (
        Catalogue.load(artifact / "catalogue.parquet").item_ids[20],
        load_hstu(artifact / "model").config,
    )
    events.write_text(f"user,item,rating,timestamp\na,{item},5,100\n")
    has, train = list(config.tasks), ["train", str(artifact), "--recipe", str(mine), "--events", str(events)]
    for settings, problem in (
        (
            {"tasks": [3, 5]},
            f"tasks: is [3, 5], the model has {has} (accepted: what the model has, or not named)",
        ),
        ({"experts": 4}, "experts: is 4, the model has 0 (accepted: what the model has, or not named)"),
        ({"epochs": 3}, "recipe: sets epochs with --events"),
    ):
        mine.write_text(json.dumps({"recipe": "hstu-ranker", **settings}))
        assert main(train) == 2
        assert problem in capsys.readouterr().err
    mine.write_text(json.dumps({"recipe": "hstu-ranker", "tasks": has, "experts": 0, "tokens": 60}))
    assert main(train) == 0 and "hstu: trained further" in capsys.readouterr().out
