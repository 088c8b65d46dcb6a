"""A model of the next item trained further: from its own weights, each new event once, of the one before it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from build.openvino.engines import build_engines
from cli.main import main
from ensembles.local import LocalRecommender
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu_next, save_hstu
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import NEXT_WEIGHTS
from tests.oracles.hstu_asked import check_ranking
from tests.oracles.next_asked import NextByTorch, next_scores, times_of
from tests.tiny import add_hstu
from tests.training.files_learnt import HEAD, check_completed, check_days, check_two_ranks, save_items
from tests.training.hstu.test_hstu_further import with_ratings
from tests.training.hstu_next.test_hstu_next import MOST, SETTINGS, USERS, fresh_model, some_timed
from training.data.events import read_events
from training.data.histories import Histories
from training.hstu_next.batches import places_in
from training.hstu_next.further import FurtherRun, Learnt, load_newer, train_further
from training.hstu_next.timed import Timed
from training.sharded.world import World

QUICK = replace(SETTINGS, learning_rate=0.1)
NO_EVENTS = np.zeros(0, np.int64)
NOTHING = Learnt(Timed(np.zeros(1, np.int64), NO_EVENTS, NO_EVENTS), NO_EVENTS)


def some_users() -> Learnt:
    """Users of whom every other one comes back, with some of his events to be learnt, with gaps between."""
    timed, draw = some_timed(), np.random.default_rng(1)
    later = np.arange(len(timed.rows)) - np.repeat(timed.offsets[:-1], timed.lengths)
    even = np.repeat(np.arange(USERS) % 2 == 0, timed.lengths)
    return Learnt(timed, np.flatnonzero((later > 0) & even & (draw.random(len(later)) < 0.7)))


def users_of(timed: Timed, events: np.ndarray) -> np.ndarray:
    return np.searchsorted(timed.offsets, events, "right") - 1


def loss_of(model: HstuNext, timed: Timed, learnt: np.ndarray) -> float:
    """Of every event that is to be learnt, by a pass of its own over those of its user before it."""
    losses = []
    for event, user in zip(learnt.tolist(), users_of(timed, learnt).tolist(), strict=True):
        before = slice(max(timed.offsets[user], event - MOST), event)
        scores = next_scores(model.eval(), timed.rows[before], timed.times[before], timed.times[event])
        losses.append(-float(torch.from_numpy(scores).log_softmax(0)[timed.rows[event]]))
    return float(np.mean(losses))


def further(world: World, rate: float = 0.1) -> dict[str, np.ndarray]:
    kept, _ = train_further(world, some_users(), NOTHING, fresh_model(), replace(QUICK, learning_rate=rate))
    return {name: each.numpy() for name, each in kept.state_dict().items()}


def test_new_events_are_asked_for_once_and_those_before_are_not() -> None:
    timed, learnt = some_users()
    run, found = FurtherRun(World(), some_users(), fresh_model(), QUICK, 0), []
    for batch in run.batches(0):
        assert (batch[:, 1] - batch[:, 0] <= MOST).all()
        for span in batch:
            event = places_in(span[None])[0]
            wanted = event[run.asked(span[None])] + 1
            assert len({*users_of(timed, event), *users_of(timed, wanted)}) == 1, "a span is of one user"
            begins = event[0] in timed.offsets
            assert begins or wanted[0] - event[0] > MOST // 2, "the first of them has a history too"
            found += wanted.tolist()
    assert sorted(found) == learnt.tolist()


def test_the_loss_is_of_the_newest_behind_all_before_it() -> None:
    """Of one event per user the span is what serving reads; so the loss is that of a pass for it alone, dropout off."""
    timed, _ = some_users()
    newest, model = timed.offsets[1::2] - 1, fresh_model(replace(SETTINGS, dropout=0.5))
    want = loss_of(model, timed, newest)
    settings = replace(QUICK, learning_rate=1e-12, tokens=10**6, temperature=0.5)  # the model has its own
    _, report = train_further(World(), Learnt(timed, newest), NOTHING, model, settings)
    assert report["updates"] == 1 and report["loss"] == pytest.approx(want, abs=2e-4)


def test_it_begins_with_the_model_and_learns() -> None:
    timed, learnt = some_users()
    model = fresh_model()
    for name, values in further(World(), rate=1e-12).items():
        np.testing.assert_allclose(values, model.state_dict()[name].numpy(), 1e-6, 1e-7, err_msg=name)
    kept, report = train_further(World(), some_users(), NOTHING, fresh_model(), QUICK)
    assert loss_of(kept, timed, learnt) < loss_of(model, timed, learnt) - 0.1
    assert (report["events"], report["users"]) == (len(learnt), USERS // 2)
    assert kept.config == model.config


def test_two_ranks_end_where_one_ends() -> None:
    check_two_ranks(further)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Of `some_timed`: items i0, i1, ... under ids from 100 on, users u0, u1, ..."""
    artifact, timed, model = tmp_path / "artifact", some_timed(), fresh_model()
    save_items(artifact, model.codes.numpy() - model.config.code_starts, (8, 8))
    save_histories(artifact, timed, timed.times)
    save_hstu(model, artifact / "model")
    manifest.record(artifact, "hstu-next", "as made", (artifact / "model").iterdir(), {})
    return artifact


def save_histories(artifact: Path, timed: Timed, times: np.ndarray | None) -> None:
    histories = Histories(np.arange(USERS), timed.rows + 100, timed.offsets, times)
    histories.save(artifact / "histories.parquet", [f"u{n}" for n in range(USERS)])


def weights(artifact: Path) -> bytes:
    return (artifact / "model" / NEXT_WEIGHTS).read_bytes()


def command(artifact: Path, *files: Path) -> list[str]:
    return ["train", str(artifact), "--recipe", "hstu-next", "--events", *map(str, files)]


def histories_of(artifact: Path, *files: Path) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Of every user the rows and times that are read, and the events that are learnt."""
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    timed, learnt = load_newer(artifact, catalogue, read_events(artifact, files))
    pairs = list(zip(timed.rows.tolist(), timed.times.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(timed.offsets, timed.offsets[1:], strict=False)], learnt.tolist()


def test_a_day_after_the_other(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed = some_timed()
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    # Milliseconds, and dates: 2020-09-13T12:26:40 is second 1,600,000,000
    monday.write_text(HEAD + "u3,i20,1600000000000\nnew,i21,1600000001500\nu3,i4,1600000002000\n")
    tuesday.write_text(HEAD + "new,i22,2020-09-13T12:27:40\nu3,i4,2020-09-13T12:26:42\nu3,i5,1970-01-01\n")
    check_days(artifact, "hstu-next", NEXT_WEIGHTS, command(artifact), [monday, tuesday], [2, 1], capsys)
    own = slice(timed.offsets[3], timed.offsets[4])
    stored = list(zip(timed.rows[own].tolist(), timed.times[own].tolist(), strict=True))
    (known, new), learnt = histories_of(artifact, monday, tuesday)
    at = 1_600_000_000
    assert known == [(5, 0), *stored, (20, at), (4, at + 2)], "by time; what was there before counts once"
    assert new == [(21, at + 1), (22, at + 60)]
    assert learnt == [len(known) + 1], (
        "what is a user's first, the new one's or u3's of 1970, is history alone"
    )


def test_a_data_set_without_times_is_from_before_and_gets_none(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its model knows the time 0 alone: those of the files say which event is first, and how far apart is not read."""
    timed, found = some_timed(), []
    save_histories(artifact, timed, None)
    copy, rows = Path(shutil.copytree(artifact, artifact.parent / "copy")), timed.rows[: timed.lengths[0]]
    for of, later in ((artifact, "1960-01-02"), (copy, "2020-01-01")):
        events = of.parent / f"{of.name}.csv"
        events.write_text(HEAD + f"u0,i20,{later}\nu0,i21,1960-01-01\n")
        ((known,), learnt) = histories_of(of, events)
        assert known == [(row, 0) for row in [*rows.tolist(), 21, 20]]
        assert learnt == [len(rows), len(rows) + 1]
        assert main(command(of, events)) == 0
        assert "histories.parquet has no times, so those of the files say only" in capsys.readouterr().out
        found.append(weights(of))
    assert found[0] == found[1]


def test_ended_between_model_and_manifest_it_is_completed(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,1600000000\n")
    check_completed(artifact, "hstu-next", command(artifact, events), capsys, monkeypatch)


def test_what_cannot_be_learnt_is_told(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, recipe = artifact.parent / "events.csv", artifact.parent / "mine.json"
    recipe.write_text('{"recipe": "hstu-next", "temperature": 0.1, "epochs": 3}')
    train, before, timed = command(artifact, events), weights(artifact), some_timed()
    for more, text, problem in (
        (["--minutes", "1"], "", "minutes: is given with --events (accepted: without"),
        (["--recipe", str(recipe)], "", "recipe: sets epochs, temperature with --events"),
        ([], "u3,i1,100\nu3,plum,101\n", f"{events}: has 1 event of unknown items: line 3 has 'plum' (accepted"),
        ([], f"u3,i{timed.rows[timed.offsets[3]]},{timed.times[timed.offsets[3]]}\n", "has no event that is not kn"),
        ([], "new,i20,100\n", f"{events}: has no new event but the first of a user"),
        ([], "u3,i20,soon\n", "column timestamp: line 2 is 'soon'"),
    ):  # fmt: skip
        events.write_text(HEAD + text)
        assert main([*train, *more]) != 0
        assert problem in capsys.readouterr().err
        assert weights(artifact) == before
    events.write_text(HEAD + "u3,i20,1600000000\n")
    path = artifact / "model" / NEXT_WEIGHTS
    path.write_bytes(before[:-1] + b"!")
    assert main(train) != 0
    assert f"{path}: is not the file that stage `hstu-next` made" in capsys.readouterr().err
    (artifact / manifest.NAME).unlink()
    assert main(train) != 0
    said = "events: are given, but there is no HSTU model of the next item to train further"
    assert said in capsys.readouterr().err


def test_a_model_of_other_semantic_ids_is_refused(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, path = artifact.parent / "events.csv", artifact / "catalogue.parquet"
    events.write_text(HEAD + "u3,i20,1600000000\n")
    catalogue = Catalogue.load(path)
    replace(catalogue, codes=catalogue.codes[::-1].copy()).save(path)
    assert main(command(artifact, events)) != 0
    said = f"items have other codes; `genrec train {artifact} --recipe hstu-next` makes it anew"
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_it_is_served_by_a_new_export_and_build(
    tiny_hstu_next: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then commands say that what answers is of the earlier weights. A delta is refused."""
    artifact = with_ratings(Path(shutil.copytree(tiny_hstu_next, tmp_path / "artifact")), 12)
    ids, name = Catalogue.load(artifact / "catalogue.parquet").item_ids, f"model/{NEXT_WEIGHTS}"
    of = {manifest.OF: {name: manifest.recorded(artifact, name)}}  # as `genrec export` enters it
    manifest.record(artifact, "export", "tiny", (artifact / "onnx").iterdir(), of)
    asked, given = (ids[:6].tolist(), ids[50:90].tolist()), times_of(np.random.default_rng(0), 6)
    was, events = NextByTorch(artifact)(*asked, **given), tmp_path / "events.csv"
    events.write_text(HEAD + f"a,{ids[20]},100\nnew,{ids[21]},101\nnew,{ids[22]},103\n")
    assert main(command(artifact, events)) == 0
    anew = f"`genrec export {artifact}` and `genrec build {artifact}` make it anew"
    assert manifest.outdated(artifact).endswith(f"is of an earlier {name}: {anew}")
    assert main(["export", str(artifact), "--delta"]) != 0
    assert "hstu-next has no deltas" in capsys.readouterr().err
    build_engines(add_hstu(artifact, lambda _: load_hstu_next(artifact / "model")), "f32")
    now = NextByTorch(artifact)(*asked, **given)
    assert max(abs(now[item] - was[item]) for item in now) > 1e-3
    with LocalRecommender(artifact, 16, decoder="rank") as runtime:
        (answer,) = runtime.rank([asked], 10, **given)
    check_ranking(answer, now, 10)
