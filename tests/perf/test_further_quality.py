"""The benchmark of training further: nobody is asked for what he learnt, and its figures are those of `evaluate`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.nn.model import Generator
from perf.kit import render
from perf.quality import further_quality, further_spans
from perf.quality.further_quality import COMPARED, GAUC, HR, LOSS, NDCG, NEXT_HR, NEXT_NDCG
from tests.training.generator.test_generator_further import loss_of
from tests.training.generator.test_train import TINY
from tests.training.hstu import test_hstu
from tests.training.hstu_next import test_hstu_next
from training.data.histories import RATINGS, history_table
from training.generator.draft import DraftSettings
from training.generator.evaluate import hits, metrics
from training.generator.recommend import model_recommender
from training.generator.train import fresh_generator
from training.hstu.batches import events_of, further_samples
from training.hstu.measure import gauc_name, gaucs, scores_of
from training.hstu.settings import HstuSettings
from training.hstu_next.measure import ranks_of
from training.hstu_next.train import fresh_model

FILES, EVENTS = 3, 300


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products are tiny: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The users of `test_hstu`, u0 with all but two events after those of others; items i0, i1, ... from id 100 on."""
    artifact, ratings = tmp_path_factory.mktemp("data"), test_hstu.some_ratings()
    ratings.times[2 : ratings.offsets[1]] += 10**6
    keys = pa.array([f"u{n}" for n in range(len(ratings))])
    table = history_table(
        np.arange(len(ratings)), ratings.items + 100, np.diff(ratings.offsets), keys, ratings.times, ratings.ratings
    )  # fmt: skip
    pq.write_table(table, artifact / "histories.parquet")
    names = [f"i{n}" for n in range(test_hstu.ITEMS)]
    ids = np.arange(len(names)) + 100
    of_items = {
        "item_id": ids,
        "key": names,
        "title": [f"the {n}" for n in names],
        "genre": [""] * len(names),
    }
    pq.write_table(pa.table(of_items), artifact / "items.parquet")
    return artifact


def test_parts_are_all_events_once_in_order_of_time(artifact: Path, tmp_path: Path) -> None:
    spans = further_spans.cut(artifact, tmp_path, 0.5, FILES, EVENTS)
    events = further_spans.events_by_time(artifact)
    times = events["timestamp"].to_numpy()
    assert (np.diff(times) >= 0).all() and len(times) == len(test_hstu.some_ratings().times)
    first, later = len(events) // 2, [pq.read_table(path) for path in (*spans.files, spans.test)]
    assert [len(each) for each in later] == [EVENTS] * FILES + [len(events) // 20]
    assert pa.concat_tables([events.slice(0, first), *later]).equals(
        events.slice(0, first + sum(map(len, later)))
    )
    for folder, end in ((spans.base, first), (spans.whole, first + FILES * EVENTS)):
        kept, wanted = further_spans.events_by_time(folder), events.slice(0, end)
        counts = dict(
            zip(*(each.tolist() for each in np.unique(wanted["user"], return_counts=True)), strict=True)
        )
        some = [counts[user] >= 3 for user in wanted["user"].to_pylist()]
        rows = [
            set(map(tuple, zip(*each.to_pydict().values(), strict=True)))
            for each in (kept, wanted.filter(some))
        ]
        assert rows[0] == rows[1] and len(kept) == sum(some) == len(wanted) - 2
    codes = [Catalogue.load(folder / "catalogue.parquet") for folder in (spans.base, spans.whole)]
    assert np.array_equal(codes[0].codes, codes[1].codes) and len(codes[0]) == test_hstu.ITEMS


@pytest.mark.parametrize(
    ("share", "files", "field"), [(1.5, 1, "base"), (0.5, 5, "files"), (0.9, 1, "files")]
)
def test_what_does_not_fit_is_refused(
    artifact: Path, tmp_path: Path, share: float, files: int, field: str
) -> None:
    with pytest.raises(InputError, match=field):
        further_spans.cut(artifact, tmp_path, share, files, EVENTS)


def test_figures_are_means_over_events(artifact: Path, tmp_path: Path) -> None:
    spans = further_spans.cut(artifact, tmp_path, 0.5, FILES, EVENTS)
    asked = further_quality.asked_of(spans)
    newer, catalogue = asked.events, asked.catalogue
    model: Generator = fresh_generator(TINY, catalogue, 0, []).eval()
    found = further_quality.lists_of(model, catalogue, newer)
    recommend, ranks = model_recommender(model, catalogue, further_quality.BEAM_WIDTH), []
    items = catalogue.item_ids[newer.rows]
    for event, user in zip(newer.learnt, newer.users, strict=True):
        given = items[newer.offsets[user] : event]
        ranks.append(hits(recommend([given], 10, True), items[event : event + 1])[0])
    wanted = metrics(np.array(ranks), (10,)) | {LOSS: loss_of(model, catalogue, newer)}
    for name in (HR, NDCG, LOSS):
        assert found[name].mean() == pytest.approx(wanted[name], rel=1e-4), name
        assert len(found[name]) == len(np.unique(newer.users))


def test_gauc_of_ratings_is_that_of_evaluate(artifact: Path, tmp_path: Path) -> None:
    spans = further_spans.cut(artifact, tmp_path, 0.5, FILES, EVENTS)
    ratings = further_quality.asked_of(spans).ratings
    model = test_hstu.some_model()
    learnt = np.flatnonzero(ratings.file == FILES + 1)
    samples = further_samples(ratings, learnt, test_hstu.MOST)
    events = events_of(samples)
    wanted = gaucs(ratings, events, scores_of(model, ratings, samples, ""))[gauc_name(4)]
    assert sorted(events) == learnt.tolist() and len(learnt) == len(pq.read_table(spans.test))
    assert further_quality.likes_of(model, ratings)[GAUC].mean() == pytest.approx(wanted)


def test_figures_of_the_next_item_are_means_over_events(artifact: Path, tmp_path: Path) -> None:
    asked = further_quality.asked_of(further_spans.cut(artifact, tmp_path, 0.5, FILES, EVENTS))
    learnt, model = asked.following, fresh_model(asked.catalogue, test_hstu_next.SETTINGS, 0).eval()
    found, ranks = further_quality.following_of(model, learnt), []
    for event, user in zip(learnt.events, learnt.users, strict=True):
        place = np.array([[user, event - learnt.timed.offsets[user]]])
        ranks.append(ranks_of(model, learnt.timed, place, "")[0])
    wanted = metrics(np.array(ranks), (10,))
    for name, of_evaluate in ((NEXT_HR, HR), (NEXT_NDCG, NDCG)):
        assert found[name].mean() == pytest.approx(wanted[of_evaluate]) and 0 < wanted[of_evaluate] < 1
        assert len(found[name]) == len(np.unique(asked.events.users)), "the generator's events"
    assert np.array_equal(learnt.events, asked.events.learnt)


@pytest.mark.parametrize("rated", [True, False])
@pytest.mark.long
def test_it_runs_and_fills_its_table(
    artifact: Path, rated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    shutil.copytree(artifact, tmp_path / "mine")
    if not rated:
        path = tmp_path / "mine" / "histories.parquet"
        pq.write_table(pq.read_table(path).drop_columns(RATINGS.name), path)
    # Fewer epochs: `main` takes settings of a data set's size
    monkeypatch.setattr(further_quality, "recipe", lambda _: replace(TINY, epochs=1))
    monkeypatch.setattr(further_quality, "HstuSettings", partial(HstuSettings, epochs=1, averaging=0.9))
    monkeypatch.setattr(further_quality, "DraftSettings", partial(DraftSettings, epochs=1))
    few = replace(test_hstu_next.SETTINGS, epochs=1, validate_every=1)
    monkeypatch.setattr(further_quality, "HstuNextSettings", lambda: few)
    monkeypatch.chdir(tmp_path)
    options = ["--seeds", "0,1" if rated else "0", "--files", str(FILES), "--events", str(EVENTS), "--save"]
    further_quality.main(["mine", *options])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    claims = {claim for claim, (*_, figure) in COMPARED.items() if rated or figure != GAUC}
    assert claims == {claim for claim in COMPARED if told[claim] is not None}, "the others are null"
    assert len(told["compared"]) == len(claims)
    by_claim = dict(zip(told["spread"], told["compared"], strict=True))
    assert by_claim["further_over_before_loss"]["difference"] < 0, "it learns"
    for figure in (
        "hr10",
        "ndcg10",
        "loss",
        "draft_hr10",
        "next_hr10",
        "next_ndcg10",
        *(["gauc"] if rated else []),
    ):
        before, anew, between = (
            by_claim[f"{pair}_{figure}"]["difference"]
            for pair in ("further_over_before", "anew_over_before", "further_over_anew")
        )
        assert before - anew == pytest.approx(between, abs=1e-9)
    assert set(told["seconds"]) == {"before", "further", "anew"}
    lines = render.table("further-quality", tmp_path, tmp_path).splitlines()
    assert lines[0].startswith(f"mine, seeds {options[1]}, {told['asked']['events']} events of ")
    assert len(lines) == 4 + len(claims)
