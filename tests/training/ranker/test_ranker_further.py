"""A ranker trained further: from its own weights, over the generator as it is now, each new event a place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.chain import How, make_ranker
from cli.main import main
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.nn.checkpoint import load_generator
from genrec.nn.ranker import Ranker
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.options import OPTIONS, WEIGHTS
from tests.training.files_learnt import HEAD, check_completed, check_days, check_two_ranks
from tests.training.ranker.test_ranker import ITEMS, QUICK, ring_artifact
from training.generator.further import Newer
from training.ranker.candidates import Candidates, make_candidates
from training.ranker.evaluate import Places
from training.ranker.further import candidates_of, places_learnt, train_further
from training.ranker.train import fresh_ranker, places_over
from training.sharded.world import World

SETTINGS = replace(QUICK, learning_rate=0.02, averaging=0.9)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """See `ring_artifact`: users 0, 1, ..., and items i0, i1, ... under ids from 100 on; with a ranker."""
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    ring_artifact(artifact)
    keys = [f"i{n}" for n in range(ITEMS)]
    pq.write_table(pa.table({"item_id": np.arange(ITEMS) + 100, "key": keys}), artifact / "items.parquet")
    make_ranker(artifact, how=How(threads=1), changes={"epochs": 1, "batch": 16, "negatives": 3})
    return artifact


def some_users() -> Newer:
    """Users who walk backwards round the ring, of whose items all but the first are to be learnt."""
    walks = [(start - np.arange(6)) % ITEMS for start in range(30)]
    learnt = np.setdiff1d(np.arange(180), np.arange(30) * 6)
    return Newer(np.concatenate(walks), np.arange(31) * 6, learnt)


def candidates(world: World, artifact: Path, newer: Newer) -> tuple[Places, Candidates]:
    rows, asked = places_learnt(newer)
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    generator = load_generator(artifact / "model").to(world.device)
    found = candidates_of(world, generator, catalogue, rows, asked)
    return places_over(artifact, catalogue, rows, "codes"), found


def learn(
    world: World, artifact: Path, rate: float = 0.02, order: str = "split"
) -> tuple[Ranker, dict[str, Any]]:
    ranker, newer = fresh_ranker(artifact, order, True, 0.0, 2, 0), some_users()
    given = candidates(world, artifact, newer)
    return train_further(world, ranker, *given, replace(SETTINGS, learning_rate=rate), newer.users)


def further(world: World, *of: Any) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in learn(world, *of)[0].state_dict().items()}


def test_a_place_is_an_event_behind_the_known_ones_before_it() -> None:
    newer = Newer(np.array([5, -1, 7, 8, -1, 9, 3, 4]), np.array([0, 4, 6, 6, 8]), np.array([1, 2, 3, 5, 7]))
    rows, places = places_learnt(newer)
    assert [each.tolist() for each in rows] == [[5, 7, 8], [9], [], [3, 4]]
    assert places.tolist() == [[0, 1], [3, 1], [0, 2]], "nobody's first known item; shortest first"


def candidates_on(world: World, artifact: Path) -> dict[str, np.ndarray]:
    return vars(candidates(world, artifact, some_users())[1])


def test_ranks_share_the_search_of_candidates(artifact: Path) -> None:
    check_two_ranks(candidates_on, artifact)
    rows, asked = places_learnt(some_users())
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    want = make_candidates(load_generator(artifact / "model"), catalogue, rows, asked, "twin")
    found = candidates(World(), artifact, some_users())[1]
    assert len(found) == 150 and all((getattr(found, name) == of).all() for name, of in vars(want).items())


@pytest.mark.long
def test_two_ranks_end_where_one_ends(artifact: Path) -> None:
    check_two_ranks(further, artifact)


def test_it_begins_with_the_ranker_and_learns(artifact: Path) -> None:
    before = fresh_ranker(artifact, "both", True, 0.0, 2, 0).state_dict()
    for name, values in further(World(), artifact, 1e-12, "both").items():
        np.testing.assert_allclose(values, before[name].numpy(), 1e-6, 1e-7, err_msg=name)
    newer, ranker = some_users(), fresh_ranker(artifact, "split", True, 0.0, 2, 0)
    given = candidates(World(), artifact, newer)
    settings = replace(SETTINGS, learning_rate=0.0)
    _, unlearnt = train_further(World(), ranker, *given, settings, newer.users)
    kept, report = train_further(World(), ranker, *given, SETTINGS, newer.users)
    _, learnt = train_further(World(), kept, *given, settings, newer.users)
    assert learnt["loss"] < unlearnt["loss"] - 0.05
    assert (report["events"], report["users"], report["updates"]) == (150, 30, 10)


def test_a_day_after_the_other(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    monday.write_text(HEAD + "3,i7,100\nnew,i1,101\n3,i4,102\n3,i4,102\n")
    tuesday.write_text(HEAD + "new,i2,200\n3,i4,102\n3,i5,201\n")
    options, train = (
        (artifact / "model" / OPTIONS).read_bytes(),
        ["train", str(artifact), "--ranker", "--events"],
    )
    check_days(artifact, "ranker", WEIGHTS, train, [monday, tuesday], [2, 2], capsys)
    assert (artifact / "model" / OPTIONS).read_bytes() == options


def test_no_more_events_are_learnt_than_places(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, recipe = artifact.parent / "events.csv", artifact.parent / "mine.json"
    events.write_text(HEAD + "".join(f"{user},i{user % ITEMS},100\n" for user in range(20)))
    recipe.write_text('{"recipe": "ranker", "places": 5}')
    assert main(["train", str(artifact), "--recipe", str(recipe), "--events", str(events)]) == 0
    assert "events 5, users 5" in capsys.readouterr().out


def test_over_a_generator_that_has_learnt_since(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until then the ranker is refused."""
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "3,i7,100\n3,i2,101\n")
    of_model = artifact / "model"
    assert main(["train", str(artifact), "--events", str(events)]) == 0
    assert f"by `genrec train {artifact} --ranker --events {events}`, then" in capsys.readouterr().out
    with pytest.raises(ArtifactError, match="was trained on another generator"):
        load_ranker(of_model)
    assert main(["train", str(artifact), "--ranker", "--events", str(events)]) == 0
    generator, ranker = load_generator(of_model).state_dict(), load_ranker(of_model).generator.state_dict()
    assert all((ranker[name] == of).all() for name, of in generator.items())
    manifest.verify(artifact)


def test_before_a_generator_that_learns_the_same_file(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has learnt the file does not learn it again, so the command that helps is told."""
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "3,i7,100\n3,i2,101\n")
    train = ["train", str(artifact), "--ranker", "--events", str(events)]
    assert main(train) == 0 and main(["train", str(artifact), "--events", str(events)]) == 0
    capsys.readouterr()
    assert main(train) != 0
    said = capsys.readouterr()
    assert said.out == f"ranker: has learnt {events}\n"
    anew = f"`genrec train {artifact} --ranker` makes it anew"
    assert f"was trained on another generator than model.safetensors; {anew}" in said.err


def test_ended_between_weights_and_manifest_it_is_completed(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "3,i7,100\n")
    train = ["train", str(artifact), "--ranker", "--events", str(events)]
    check_completed(artifact, "ranker", train, capsys, monkeypatch)


def test_what_is_not_read_is_told(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, recipe = artifact.parent / "events.csv", artifact.parent / "mine.json"
    events.write_text(HEAD + "3,i7,100\n")
    recipe.write_text('{"recipe": "ranker", "epochs": 3, "reach": 2, "batch": 8}')
    train, weights = ["train", str(artifact), "--events", os.fspath(events)], artifact / "model" / WEIGHTS
    before = weights.read_bytes()
    for more, problem in (
        (
            ["--ranker", "--ranker-order", "both"],
            "ranker-order: is given with --events (accepted: without: the rank",
        ),
        (["--ranker", "--own-backbone"], "own-backbone: is given with --events"),
        (["--recipe", str(recipe)], "recipe: sets epochs, reach with --events"),
    ):
        assert main([*train, *more]) != 0
        assert problem in capsys.readouterr().err and weights.read_bytes() == before
