"""A generator trained further: from its own weights, on new events alone, each once behind all that came before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from cli.main import main
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import WEIGHTS, load_generator, save_generator
from genrec.nn.loss import level_sums
from genrec.nn.model import Generator
from genrec.nn.ranker_checkpoint import load_ranker
from tests.tiny import add_ranker
from tests.training.files_learnt import HEAD, check_completed, check_days, check_two_ranks, save_items
from tests.training.generator.test_train import TINY, data
from training.data.events import keys_of_items, read_events
from training.data.histories import Histories
from training.data.windows import gather
from training.generator import further as of_generator
from training.generator.further import GeneratorRun, Newer, load_newer, load_older, train_further
from training.generator.train import fresh_generator
from training.sharded.world import World

SETTINGS = replace(TINY, learning_rate=0.1, averaging=0.9)
MOST = TINY.max_history


def some_users() -> tuple[Newer, Catalogue]:
    """Users of whom every other one comes back, with some of his newest items to be learnt, with gaps between."""
    histories, catalogue = data()
    draw = np.random.default_rng(1)
    later = np.arange(len(histories.items)) - np.repeat(histories.offsets[:-1], histories.lengths)
    even = np.repeat(np.arange(len(histories)) % 2 == 0, histories.lengths)
    learnt = np.flatnonzero((later > 0) & even & (draw.random(len(later)) < 0.7))
    return Newer(catalogue.rows_of(histories.items), histories.offsets, learnt), catalogue


def some_model(catalogue: Catalogue) -> Generator:
    return fresh_generator(replace(TINY, dropout=0.0), catalogue, 0, []).eval()


def some_older(newer: Newer) -> Newer:
    """Those who do not come back: all of their events but the first."""
    learnt = np.ones(len(newer.rows), bool)
    learnt[newer.offsets[:-1]] = False
    owner = np.searchsorted(newer.offsets, np.arange(len(newer.rows)), "right") - 1
    return replace(newer, learnt=np.flatnonzero(learnt & ~np.isin(owner, newer.users)))


NONE = Newer(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))


def loss_of(model: Generator, catalogue: Catalogue, newer: Newer) -> float:
    """Of all that is to be learnt, each behind the items of its user before it, one at a time."""
    total, tree = 0.0, Tree.of(catalogue)
    for event, user in zip(newer.learnt, newer.users, strict=True):
        rows = newer.rows[max(newer.offsets[user], event + 1 - MOST) : event + 1].astype(np.int64)
        asked = torch.arange(len(rows))[None] == len(rows) - 1
        with torch.no_grad():
            total += float(level_sums(model, tree, torch.from_numpy(rows)[None], asked).sum())
    return total / len(newer.learnt)


def further(world: World, rate: float = 0.1) -> dict[str, np.ndarray]:
    newer, catalogue = some_users()
    settings = replace(SETTINGS, learning_rate=rate)
    kept, _ = train_further(world, some_model(catalogue), catalogue, newer, some_older(newer), settings)
    return {name: each.numpy() for name, each in kept.state_dict().items()}


def test_new_events_are_asked_for_once_and_those_before_are_not() -> None:
    newer, catalogue = some_users()
    run = GeneratorRun(World(), some_model(catalogue), SETTINGS, catalogue, newer, 0)
    found, owner = [], np.repeat(np.arange(len(newer.offsets) - 1), np.diff(newer.offsets))
    for batch in run.batches(0):
        events, asked = gather(np.arange(len(newer.rows)), batch), run.asked(batch)
        assert events.shape == asked.shape and events.shape[1] <= MOST
        for of_window, of_asked in zip(events, asked, strict=True):
            of_window = of_window[of_window >= 0]
            assert len(set(owner[of_window])) == 1, "a window is of one user"
            first = int(np.flatnonzero(of_asked)[0])
            begins = of_window[0] in newer.offsets
            assert first >= 1 and (begins or first >= MOST // 2), "the first of them has a history too"
            found += of_window[of_asked[: len(of_window)]].tolist()
    assert sorted(found) == newer.learnt.tolist()


def test_it_begins_with_the_model_and_learns() -> None:
    newer, catalogue = some_users()
    model = some_model(catalogue)
    for name, values in further(World(), rate=1e-12).items():
        np.testing.assert_allclose(values, model.state_dict()[name].numpy(), 1e-6, 1e-7, err_msg=name)
    kept, report = train_further(World(), some_model(catalogue), catalogue, newer, NONE, SETTINGS)
    assert loss_of(kept, catalogue, newer) < loss_of(model, catalogue, newer) - 0.1
    assert (report["events"], report["users"]) == (len(newer.learnt), 20)
    assert abs(float(report["loss"]) - loss_of(model, catalogue, newer)) < 0.5


@pytest.mark.long
def test_two_ranks_end_where_one_ends() -> None:
    check_two_ranks(further)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Of the walks of `data`: items i0, i1, ... under ids from 100 on, users u0, u1, ...; a time is a place."""
    artifact = tmp_path / "artifact"
    histories, catalogue = data()
    save_items(artifact, catalogue.codes, catalogue.codebook_sizes)
    times = np.concatenate([np.arange(n) for n in histories.lengths])
    histories = Histories(histories.user_ids, histories.items + 100, histories.offsets, times)
    histories.save(artifact / "histories.parquet", [f"u{n}" for n in range(len(histories))])
    save_generator(some_model(catalogue), artifact / "model")
    manifest.record(artifact, "train", "as made", (artifact / "model").iterdir(), {})
    return artifact


def weights(artifact: Path) -> bytes:
    return (artifact / "model" / WEIGHTS).read_bytes()


def test_a_day_after_the_other(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    monday.write_text(HEAD + "u3,i20,100\nnew,i21,101\nu3,i4,102\nu3,i4,102\n")
    tuesday.write_text(HEAD + "new,i22,200\nu3,i4,102\nu3,i5,1\n")
    train = ["train", str(artifact), "--events"]
    check_days(artifact, "generator", WEIGHTS, train, [monday, tuesday], [2, 2], capsys)
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    newer = load_newer(artifact, catalogue, read_events(artifact, [monday, tuesday]))
    histories = data()[0]
    walk = histories.rows()[3].tolist()
    rows = [newer.rows[a:b].tolist() for a, b in zip(newer.offsets, newer.offsets[1:], strict=False)]
    assert rows == [[*walk[:2], 5, *walk[2:], 20, 4], [21, 22]], "by time; what was there before counts once"
    assert newer.learnt.tolist() == [2, len(newer.rows) - 1], "the new user's first event is history alone"


def test_older_events_are_of_users_drawn_at_random(artifact: Path) -> None:
    """Of the data set, and of files before the last."""
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    monday.write_text(HEAD + "new,i21,101\nnew,i22,102\nnew,i23,103\nu3,i20,100\n")
    tuesday.write_text(HEAD + "u3,i22,200\n")
    catalogue, histories = Catalogue.load(artifact / "catalogue.parquet"), data()[0]
    files = read_events(artifact, [monday, tuesday])
    rows = [tuple(walk) for walk in histories.rows()]
    rows[3] += (20,)
    whole = load_older(artifact, catalogue, files, 10**9, 0)
    spans = [tuple(whole.rows[a:b].tolist()) for a, b in zip(whole.offsets, whole.offsets[1:], strict=False)]
    assert sorted(filter(None, spans)) == sorted([*rows, (21, 22, 23)])
    assert len(whole.learnt) == sum(map(len, rows)) + 3 - len(rows) - 1, "nobody's first"
    drawn = set()
    for seed in range(3):
        some = load_older(artifact, catalogue, files, 30, seed)
        assert 30 <= len(some.rows) <= 30 + max(map(len, rows))
        drawn.add(tuple(some.rows.tolist()))
    assert len(drawn) == 3


def test_a_data_set_without_times_is_from_before(artifact: Path) -> None:
    path = artifact.parent / "events.csv"
    twice = Histories(np.arange(1), np.array([107, 107, 107, 108]), np.array([0, 4]))
    twice.save(artifact / "histories.parquet", ["u3"])
    path.write_text(HEAD + "u3,i20,1960-01-01\n")
    files = read_events(artifact, [path])
    newer = load_newer(artifact, Catalogue.load(artifact / "catalogue.parquet"), files)
    assert newer.rows.tolist() == [7, 7, 7, 8, 20] and newer.learnt.tolist() == [4]


def test_a_ranker_of_the_weights_before_is_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_ranker(artifact)
    load_ranker(artifact / "model")
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    assert main(["train", str(artifact), "--events", str(events)]) == 0
    made = (f"train {artifact} --ranker --events {events}", f"export {artifact}", f"build {artifact}")
    said = ", then ".join(f"`genrec {command}`" for command in made)
    assert f"is made anew by {said}" in capsys.readouterr().out
    assert main(["export", str(artifact)]) != 0
    anew = f"`genrec train {artifact} --ranker` makes it anew"
    assert f"was trained on another generator than model.safetensors; {anew}" in capsys.readouterr().err


def test_a_draft_head_that_learnt_with_it_is_made_anew(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, events = ["train", str(artifact), "--draft", "joint"], artifact.parent / "events of today.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    for says in ("draft: done", "draft: still good"):
        assert main(draft) == 0 and says in capsys.readouterr().out
    assert main(["train", str(artifact), "--events", str(events)]) == 0
    assert f"`genrec train {artifact} --draft alone --events '{events}'`" in capsys.readouterr().out
    for says in ("draft: done", "draft: still good"):
        assert main(draft) == 0 and says in capsys.readouterr().out


def test_ended_between_model_and_manifest_it_is_completed(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    train = ["train", str(artifact), "--events", str(events)]
    check_completed(artifact, "train", train, capsys, monkeypatch)


def test_a_file_that_grows_while_it_is_learnt_is_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was learnt of it would be learnt again with what came since."""
    events, before = artifact.parent / "events.csv", weights(artifact)
    events.write_text(HEAD + "u3,i20,100\n")

    def meanwhile(*given: object) -> object:
        with events.open("a") as file:
            file.write("u3,i21,101\n")
        return train_further(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(of_generator, "train_further", meanwhile)
    assert main(["train", str(artifact), "--events", str(events)]) != 0
    assert f"{events}: was made anew by another process meanwhile" in capsys.readouterr().err
    assert weights(artifact) == before


def test_what_cannot_be_learnt_is_told(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, recipe = artifact.parent / "events.csv", artifact.parent / "mine.json"
    recipe.write_text('{"recipe": "generator", "epochs": 3, "dropout": 0.1}')
    train, before = ["train", str(artifact), "--events", str(events)], weights(artifact)
    for more, text, problem in (
        (["--draft", "alone"], "", "events: are given, but there is no draft head to train further"),
        (["--ranker"], "", "events: are given, but there is no ranker to train further"),
        (["--minutes", "1"], "", "minutes: is given with --events (accepted: without"),
        (["--recipe", str(recipe)], "", "recipe: sets dropout, epochs with --events"),
        ([], "u3,i1,100\nu3,plum,101\n", f"{events}: has 1 event of unknown items: line 3 has 'plum' (accepted"),
        ([], f"u3,i{data()[0].rows()[3][0]},0\n", f"{events}: has no event that is not known already"),
        ([], "new,i20,100\nu3,i1,-5\n", f"{events}: has no new event but the first of a user, before which there is"),
        ([], "u3,i20,soon\n", "column timestamp: line 2 is 'soon'"),
    ):  # fmt: skip
        events.write_text(HEAD + text)
        assert main([*train, *more]) != 0
        assert problem in capsys.readouterr().err
        assert weights(artifact) == before
    events.write_text(HEAD + "u3,i20,100\n")
    made = manifest.read(artifact)["train"]
    path = artifact / "model" / WEIGHTS
    manifest.record(artifact, "train", "imported", [path], {"imported": "a checkpoint"})
    assert main(train) != 0 and "model: was imported from a checkpoint" in capsys.readouterr().err
    manifest.record(artifact, "train", made["key"], [path], made["facts"])
    path.write_bytes(before[:-1] + b"!")
    assert main(train) != 0
    assert f"{path}: is not the file that stage `train` made" in capsys.readouterr().err
    (artifact / manifest.NAME).unlink()
    assert main(train) != 0
    assert "events: are given, but there is no generator to train further" in capsys.readouterr().err


def test_a_damaged_file_of_items_is_named(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, events = artifact / "items.parquet", artifact.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    pq.write_table(pq.read_table(path).drop(["key"]), path)
    assert main(["train", str(artifact), "--events", str(events)]) != 0
    assert f"{path}: not a readable items file" in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ArtifactError, match=r"items\.parquet: not a readable items file"):
        keys_of_items(artifact)


def test_the_model_is_as_large_as_before(artifact: Path) -> None:
    """Its own shape, not that of the data set's recipe."""
    events, config = artifact.parent / "events.csv", load_generator(artifact / "model").config
    events.write_text(HEAD + "u3,i20,100\n")
    assert main(["train", str(artifact), "--events", str(events)]) == 0
    assert load_generator(artifact / "model").config == config
