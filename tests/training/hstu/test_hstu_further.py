"""An HSTU ranker trained further: from its own weights, on new events alone, and rows that nobody met stand still."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cli.main import main
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.rank.hstu import FEATURES, WEIGHTS
from genrec.rank.hstu_weights import load_weights
from tests.training.files_learnt import check_completed, check_two_ranks
from tests.training.hstu.test_hstu import ITEMS, MOST, some_model, some_ratings
from training.hstu.batches import Sample, events_of, further_samples, tokens_of
from training.hstu.further import train_further
from training.hstu.ratings import Ratings
from training.hstu.settings import HstuSettings
from training.sharded.world import World
from training.stages import prepare

SETTINGS = HstuSettings(tokens=480, learning_rate=0.1, averaging=0.9)
NONE = np.zeros(0, np.int64)
UNMET = 7  # an item that no event of the users who come back is of


def some_users() -> tuple[Ratings, np.ndarray]:
    """Users of whom the first twenty come back: their newest 1 to 20 events are to be learnt."""
    ratings = some_ratings()
    ends = ratings.offsets[1:21]
    learnt = np.concatenate([np.arange(end - 1 - n, end) for n, end in enumerate(ends)])
    items = ratings.items.copy()
    items[: ends[-1]][items[: ends[-1]] == UNMET] = UNMET + 1
    return replace(ratings, items=items), learnt


def loss_of(model: HstuRanker, ratings: Ratings, samples: list[Sample]) -> float:
    with torch.no_grad():
        labels = torch.from_numpy(ratings.labels(events_of(samples))).float()
        return float(F.binary_cross_entropy_with_logits(model(tokens_of(ratings, samples)), labels))


def further(world: World, tokens: int = 480, rate: float = 0.1) -> dict[str, np.ndarray]:
    ratings, learnt = some_users()
    settings = replace(SETTINGS, tokens=tokens, learning_rate=rate)
    kept, _ = train_further(world, ratings, learnt, NONE, some_model(), settings)
    return {name: each.numpy() for name, each in kept.state_dict().items()}


def test_new_events_are_asked_once_each_and_see_what_came_before() -> None:
    ratings, learnt = some_users()
    # A user who is new
    learnt = np.concatenate((learnt, np.arange(ratings.offsets[30], ratings.offsets[31])))
    samples = further_samples(ratings, learnt, MOST)
    assert np.array_equal(np.concatenate([each.asked for each in samples]), learnt)
    for each in samples:
        assert ratings.offsets[each.user] <= each.start <= each.stop and each.stop - each.start <= MOST
        assert (ratings.users_of(np.array([each.start, *each.asked])) == each.user).all()
        assert (each.seen >= 0).all() and (each.now <= each.asked).all()
        assert np.array_equal(each.now, each.start + each.seen) and (np.diff(each.seen) >= 0).all()


def test_it_begins_with_the_model_and_learns() -> None:
    ratings, learnt = some_users()
    samples, model = further_samples(ratings, learnt, MOST), some_model()
    before = {name: each.numpy() for name, each in model.state_dict().items()}
    for name, values in further(World(), rate=1e-12).items():
        np.testing.assert_allclose(values, before[name], rtol=1e-6, atol=1e-7, err_msg=name)
    kept, report = train_further(World(), ratings, learnt, NONE, some_model(), SETTINGS)
    assert loss_of(kept, ratings, samples) < loss_of(model, ratings, samples) - 0.05
    assert (report["events"], report["users"]) == (len(learnt), 20)


def test_a_row_that_nobody_met_stands_still() -> None:
    before, after = some_model().of_item.weight.detach().numpy(), further(World())["of_item.weight"]
    same = (before == after).all(1)
    assert same[[0, UNMET + 1]].all() and not same[np.delete(np.arange(ITEMS + 1), [0, UNMET + 1])].any()


@pytest.mark.long
def test_two_ranks_end_where_one_ends() -> None:
    check_two_ranks(further, 2400)


@pytest.fixture
def artifact(tiny_hstu: Path, tmp_path: Path) -> Path:
    """One whose data are three users' ratings of twelve of its items."""
    return with_ratings(Path(shutil.copytree(tiny_hstu, tmp_path / "artifact")), 12)


def with_ratings(artifact: Path, events: int, highest: int = 5) -> Path:
    """Of three users, so many each."""
    folder, ids = artifact.parent, Catalogue.load(artifact / "catalogue.parquet").item_ids
    rows = "".join(f"{user},{ids[n]},{1 + n % highest},{n}\n" for user in "abc" for n in range(events))
    given = {
        "interactions": f"user,item,rating,timestamp\n{rows}",
        "items": "item,title\n" + "".join(f"{item},item {item}\n" for item in ids),
        # 2, 2 and 3 values of features, as the model has
        "users": "user,age,gender,occupation\na,1,F,x\nb,2,M,y\nc,2,M,z\n",
    }
    for name, text in given.items():
        (folder / f"{name}.csv").write_text(text)
    prepare(artifact, **{name: folder / f"{name}.csv" for name in given})
    numbers = {"age": {"1": 1, "2": 2}, "gender": {"F": 3, "M": 4}, "occupation": {"x": 5, "y": 6, "z": 7}}
    (artifact / "model" / FEATURES).write_text(json.dumps(numbers))
    return artifact


def test_a_figure_of_nobody_is_null(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON has no NaN: none of the ratings that are held out is a 5."""
    with_ratings(artifact, 4)
    capsys.readouterr()
    assert main(["evaluate", str(artifact), "--recipe", "hstu-ranker", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [found["model"][name] for name in ("users r>=4", "users r>=5", "GAUC r>=5")] == [3, 0, None]


def test_ratings_beyond_those_of_the_model_are_not_measured(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of data made anew, on another scale; the semantic IDs are the same."""
    assert main(["evaluate", str(with_ratings(artifact, 12, highest=6)), "--recipe", "hstu-ranker"]) == 2
    anew = f"`genrec train {artifact} --recipe hstu-ranker` makes it anew"
    assert f"model/hstu.json: is of ratings to 5, the data has 6; {anew}" in capsys.readouterr().err


def test_from_new_events_to_a_delta(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = Catalogue.load(artifact / "catalogue.parquet").item_ids
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    head = "user,item,rating,timestamp\n"
    monday.write_text(head + f"a,{ids[20]},5,100\nnew,{ids[21]},1,101\n")
    tuesday.write_text(head + f"new,{ids[22]},4,200\n")
    train = ["train", str(artifact), "--recipe", "hstu-ranker", "--events"]
    before = load_hstu(artifact / "model").of_item.weight
    met = []
    for number, files in ((1, [monday]), (2, [monday, tuesday])):
        assert main([*train, *map(str, files)]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == "users of the files: 1 known, 1 new, 'new' first"
        assert "hstu: trained further" in said[1]
        assert main([*train, *map(str, files)]) == 0
        assert f"hstu: has learnt {files[-1]}" in capsys.readouterr().out
        after = load_hstu(artifact / "model").of_item.weight
        met.append(np.flatnonzero((before != after).any(1)) - 1)
        before = after
        manifest.verify(artifact)
        assert main(["export", str(artifact), "--delta"]) == 0
        assert f"{len(met[-1])} of 300 rows of of_item" in capsys.readouterr().out
        served, model = load_weights(artifact, number).arrays, load_hstu(artifact / "model").state_dict()
        assert all(np.array_equal(served[name], each.numpy()) for name, each in model.items())
    assert met[0].tolist() == [*range(12), 20, 21], "a's history, and what is new"
    again = {*range(12), 20}  # of whoever is drawn to be learnt again
    assert {21, 22} <= {*met[1].tolist()} <= {*again, 21, 22}, "what the new user did on Monday is history"


def test_ended_between_model_and_manifest_it_is_completed(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events, item = artifact.parent / "events.csv", Catalogue.load(artifact / "catalogue.parquet").item_ids[20]
    events.write_text(f"user,item,rating,timestamp\na,{item},5,100\n")
    train = ["train", str(artifact), "--recipe", "hstu-ranker", "--events", str(events)]
    check_completed(artifact, "hstu", train, capsys, monkeypatch)


def test_data_that_the_catalogue_is_not_of_is_not_learnt(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids of items may be others by now; as with all models."""
    events, item = artifact.parent / "events.csv", Catalogue.load(artifact / "catalogue.parquet").item_ids[20]
    events.write_text(f"user,item,rating,timestamp\na,{item},5,100\n")
    manifest.record(artifact, "data", "another", [artifact / "histories.parquet"], {})
    of = {manifest.OF: {"histories.parquet": "of an earlier one"}}
    manifest.record(artifact, "tokenise", "key", [artifact / "catalogue.parquet"], of)
    before = (artifact / "model" / WEIGHTS).read_bytes()
    assert main(["train", str(artifact), "--recipe", "hstu-ranker", "--events", str(events)]) == 2
    assert (
        f"is of an earlier histories.parquet; `genrec data {artifact}` makes it anew"
        in capsys.readouterr().err
    )
    assert (artifact / "model" / WEIGHTS).read_bytes() == before


def test_what_cannot_be_learnt_is_told(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, item = artifact.parent / "events.csv", Catalogue.load(artifact / "catalogue.parquet").item_ids[5]
    train = ["train", str(artifact), "--events", str(events)]
    recipe = ["--recipe", "hstu-ranker"]
    for more, text, problem in (
        ([*recipe, "--minutes", "1"], "", "minutes: is given with --events (accepted: without"),
        (
            recipe,
            "a,other,5,1\n",
            "has 1 event of unknown items: line 2 has 'other' (accepted: items of items.parquet)",
        ),
        (recipe, f"a,{item},0,1\n", "column rating: line 2 is '0' (accepted: whole numbers, 1 to 5)"),
        (recipe, f"a,{item},1,5\n", f"{events}: has no event that is not known already"),
        (recipe, f"a,{item},good,1\n", "column rating: line 2 is 'good'"),
        (recipe, f"a,{item},,1\n", "column rating: line 2 is ''"),
    ):
        events.write_text(f"user,item,rating,timestamp\n{text}")
        assert main([*train, *more]) != 0
        assert problem in capsys.readouterr().err
    weights = artifact / "model" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert main([*train, *recipe]) != 0
    assert f"{weights}: is not the file that stage `hstu` made" in capsys.readouterr().err
