"""Training a ranker: candidates are the generator's, shared layers stay as they were, and it learns what was taken."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cli.chain import How, make_ranker
from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.manifest import read, record, verify
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.model import Generator
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.item_tokens import save_item_tokens
from perf.quality.rank_quality import LESS, measure_ranker, ranker_table, ratios, train_next, train_rows
from tests.oracles.twin import score_every_item
from training.data.histories import Histories
from training.generator.recipes import Recipe
from training.hstu_next.settings import HstuNextSettings
from training.ranker.candidates import FILE_NAME, Candidates, load_candidates, places_of
from training.ranker.evaluate import choose_weight, figures, found, ranks, scores_of, together
from training.ranker.run import RankerSettings, draw
from training.ranker.train import fresh_ranker, open_places, ranker_artifact, train_ranker
from training.sharded.world import World

SIZES, ITEMS = (4, 3), 12
QUICK = RankerSettings(places=200, epochs=2, batch=16, negatives=3)


def ring_artifact(folder: Path) -> Path:
    """Users who walk round a ring of 12 items, as `test_draft` has them; the generator has learnt nothing."""
    items = np.arange(ITEMS)
    codes = np.stack((items // 3, items % 3), axis=1).astype(np.int32)
    Catalogue(items + 100, codes, [str(i) for i in items], np.ones(ITEMS, np.int64), SIZES).save(
        folder / "catalogue.parquet"
    )
    walks = [(np.arange(8) + start) % ITEMS + 100 for start in range(40)]
    histories = Histories(np.arange(40), np.concatenate(walks), np.arange(41) * 8)
    histories.save(folder / "histories.parquet", [str(u) for u in range(40)])
    torch.manual_seed(0)
    generator = Generator(Recipe(max_history=4, hidden_size=16, head_dim=8).model(SIZES))
    torch.nn.init.normal_(generator.lm_head.weight, std=0.3)  # as made it finds all codes alike
    save_generator(generator, folder / "model")
    record(folder, "train", "as made", (folder / "model").iterdir(), {})
    return folder


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """See `ring_artifact`."""
    return ring_artifact(tmp_path)


def test_places_are_of_the_past_and_one_of_each_held_out_item() -> None:
    lengths = np.array([9, 3, 5, 2])
    assert places_of(lengths, "test", 6).tolist() == [[3, 1], [1, 2], [2, 4], [0, 8]]
    assert places_of(lengths, "validation", 6).tolist() == [[1, 1], [2, 3], [0, 7]]
    train = places_of(lengths, "train", 3)
    assert [cut for user, cut in train if user == 2] == [2]
    of_long = [cut for user, cut in train if user == 0]
    assert len(set(of_long)) == 3 and set(of_long) <= set(range(2, 7)), "targets before the validation item"


def test_candidates_are_the_generator_s_best_unseen_items(artifact: Path) -> None:
    generator, catalogue = load_generator(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    found = load_candidates(artifact, 2)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [80, 40, 40]
    for split, place in (("test", 3), ("train", 17)):
        of = found[split]
        past = [int(r + of.user[place]) % ITEMS for r in range(of.cut[place])]
        scores = score_every_item(generator, catalogue, past[-4:], set(past))
        want = sorted(scores, key=lambda item: -scores[item])
        rows = of.rows[place]
        assert catalogue.item_ids[rows[rows >= 0]].tolist() == want
        assert of.scores[place][: len(want)] == pytest.approx([scores[item] for item in want], abs=1e-4)
        assert (rows[len(want) :] == -1).all() and np.isneginf(of.scores[place][len(want) :]).all()
        assert of.target[place] == (of.user[place] + of.cut[place]) % ITEMS


def test_candidates_are_made_once_per_generator(artifact: Path) -> None:
    first, file = load_candidates(artifact, 2), artifact / "training" / FILE_NAME
    made = file.stat().st_mtime_ns
    again = load_candidates(artifact, 2)
    assert file.stat().st_mtime_ns == made
    assert all((getattr(again[s], n) == v).all() for s in first for n, v in vars(first[s]).items())
    generator = load_generator(artifact / "model")
    generator.lm_head.weight.data *= -1
    save_generator(generator, artifact / "model")
    other = load_candidates(artifact, 2)
    assert (other["test"].rows != first["test"].rows).any()
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(ArtifactError, match=r"rank_candidates\.safetensors: not readable candidates"):
        load_candidates(artifact, 2)


def test_what_is_drawn_is_the_target_and_other_candidates() -> None:
    rows = np.array([[5, 3, 8, 1], [7, 2, -1, -1], [4, 6, 9, 0]], np.int32)
    scores = np.array([[-1, -2, -3, -4], [-1, -2, -np.inf, -np.inf], [-5, -6, -7, -8]], np.float32)
    user = cut = np.zeros(3, np.int32)
    picked = Candidates(user, cut, np.array([8, 2, 3], np.int32), rows, scores)
    rng, drawn = np.random.default_rng(0), set()
    for _ in range(50):
        got, of = draw(picked, 2, rng)
        assert got[:, 0].tolist() == [8, 2, 3]
        assert of[:, 0].tolist() == [-3, -2, -9], "what was not found is a little less likely than all"
        assert got[1].tolist() == [2, 7, -1] and of[1].tolist() == [-2, -1, -np.inf]
        drawn |= set(got[0, 1:])
        for b in (0, 2):
            assert len(set(got[b])) == 3 and set(got[b, 1:]) <= set(rows[b]) - {picked.target[b]}
            assert [scores[b][list(rows[b]).index(row)] for row in got[b, 1:]] == of[b, 1:].tolist()
    assert drawn == {5, 3, 1}


def test_figures_are_the_obvious_ones() -> None:
    rows = np.array([[5, 3, 8], [7, 2, -1], [4, 6, 9]], np.int32)
    logp = np.array([[-1, -2, -3], [-1, -2, -np.inf], [-1, -2, -3]], np.float32)
    user = cut = np.zeros(3, np.int32)
    at = Candidates(user, cut, np.array([8, 7, 1], np.int32), rows, logp)
    scores = np.array([[0, 2, 1], [0, 0, -np.inf], [0, 0, 0]], np.float32)
    assert ranks(at, scores).tolist() == [1, 0, 100], "ties stay in the generator's order"
    found = figures(at, scores)
    assert found["NDCG@10"] == pytest.approx((1 / np.log2(3) + 1) / 3)
    assert found["MRR@10"] == pytest.approx((0.5 + 1) / 3) and found["Recall@10"] == pytest.approx(2 / 3)
    assert found["MRR@10 of found"] == pytest.approx(0.75)
    assert together(at, scores, 2)[1].tolist() == [-2, -4, -np.inf]
    weight, best = choose_weight(at, {"split": scores})
    assert weight == 0 and best["NDCG@10"] == found["NDCG@10"], "the generator is wrong here"
    at = Candidates(user, cut, np.array([5, 7, 4], np.int32), rows, logp)
    weight, best = choose_weight(at, {"split": scores / 2})
    assert weight == 1 and best["NDCG@10"] == 1, (
        "the least weight at which the generator, who is right, prevails"
    )


@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.long), False])
def test_it_learns_what_was_taken(artifact: Path, shared: bool) -> None:
    """The next item of the ring, which the generator does not know; twice the same from one seed."""
    before = (artifact / "model" / "model.safetensors").read_bytes()
    settings = RankerSettings(places=200, epochs=12, batch=16, negatives=5, learning_rate=1e-2, teacher=0.0)
    reports = []
    for name in ("a", "b"):
        folder = shutil.copytree(artifact, artifact / name, ignore=shutil.ignore_patterns("a", "b"))
        reports.append(ranker_artifact(World(), folder, settings, folder / "state", "split", shared, seed=4))
    assert [line["loss"] for line in reports[0]["log"]] == [line["loss"] for line in reports[1]["log"]]
    a, b = (load_file(artifact / name / "model" / "ranker.safetensors") for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (artifact / "a" / "model" / "model.safetensors").read_bytes() == before
    ranker, (places, candidates) = load_ranker(artifact / "a" / "model"), open_places(artifact / "a", 200)
    test = candidates["test"]
    assert figures(test, test.scores)["NDCG@10"] < 0.8
    assert figures(test, scores_of(ranker, places, test, "split"))["NDCG@10"] > 0.95


@torch.no_grad()
def test_entries_of_all_items_change_no_score(artifact: Path) -> None:
    """Over tokens of items that are not their semantic IDs, and are more."""
    save_item_tokens(artifact, (np.arange(ITEMS)[:, None] + np.arange(3)) % 7)
    places, candidates = open_places(artifact, 100)
    ranker = fresh_ranker(artifact, "split", True, 0.0, places.tokens.shape[1], 0).eval()
    ranker.score.normal_()
    some = candidates["test"].at(np.arange(5))
    asked = places.ask(some, some.rows)
    assert asked.tokens.shape[2] == 3 and asked.codes.shape[2] == 2
    entries = places.entries(ranker)
    for order in ("user", "split"):
        torch.testing.assert_close(asked.scores(ranker, order), asked.scores(ranker, order, entries))


@torch.no_grad()
def test_only_places_whose_target_was_found_are_scored(artifact: Path) -> None:
    """The others are misses whatever the scores are, so no figure differs from that of all scores."""
    places, candidates = open_places(artifact, 100)
    ranker = fresh_ranker(artifact, "split", True, 0.0, 2, 0).eval()
    ranker.score.normal_()
    test = candidates["test"]
    test = test.at(np.arange(len(test)))
    test.rows[::3][test.rows[::3] == test.target[::3, None]] = -1
    all_scores = places.ask(test, test.rows).scores(ranker, "split").numpy()
    all_scores[test.rows < 0] = -np.inf
    got = scores_of(ranker, places, test, "split")
    known = found(test)
    assert not known[::3].any() and known.any()
    assert np.isfinite(got[known][test.rows[known] >= 0]).all()
    np.testing.assert_allclose(got[known], all_scores[known], atol=1e-5)
    assert (got[~known][test.rows[~known] >= 0] == 0).all()
    assert figures(test, got) == figures(test, all_scores)


def test_a_history_may_be_made_of_items_own_tokens(artifact: Path) -> None:
    save_item_tokens(artifact, (np.arange(ITEMS)[:, None] + np.arange(3)) % 7)
    places, candidates = open_places(artifact, 100, "tokens")
    some = candidates["test"].at(np.arange(5))
    user = places.ask(some, some.rows).user
    newest = places.rows[some.user[0]][: some.cut[0]][-places.most :]
    assert user[0, : 3 * len(newest)].tolist() == [(row + n) % 7 for row in newest for n in range(3)]
    ranker_artifact(
        World(), artifact, RankerSettings(places=50, epochs=1), artifact / "state", history="tokens"
    )
    kept = load_ranker(artifact / "model")
    assert kept.options.history == "tokens" and kept.options.history_step(kept.config) == 3
    assert kept.options.longest_history(kept.config) == 3 * kept.config.max_history


def test_both_orders_are_drawn(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, candidates = open_places(artifact, QUICK.places)
    ranker = fresh_ranker(artifact, "both", True, 0.1, 2, 0)
    seen: list[str] = []
    plain = type(ranker).forward

    def watched(self, user, length, items, codes, order):
        if self.training:
            seen.append(order)
        return plain(self, user, length, items, codes, order)

    monkeypatch.setattr(type(ranker), "forward", watched)
    kept, report = train_ranker(World(), ranker, places, candidates, QUICK, tmp_path / "state")
    assert set(seen) == {"user", "item"} and kept.options.orders == ("user", "item")
    assert len(report["log"]) == 2 and not kept.training


def test_time_and_patience_end_it(artifact: Path) -> None:
    places, candidates = open_places(artifact, QUICK.places)
    for n, (settings, minutes, epochs) in enumerate((
        (RankerSettings(places=200, epochs=50, batch=16), 1e-9, 1),
        (RankerSettings(places=200, epochs=50, batch=64, learning_rate=0.0, patience=2), None, 3),
    )):  # fmt: skip
        ranker = fresh_ranker(artifact, "split", True, 0.0, 2, 0)
        _, report = train_ranker(
            World(), ranker, places, candidates, settings, artifact / str(n), minutes=minutes
        )
        assert len(report["log"]) == epochs


def test_stage_is_reused_and_evaluated(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.ranker.train.RankerSettings", lambda: QUICK)
    make_ranker(artifact, "both", how=How(threads=1))
    make_ranker(artifact, "both", how=How(threads=1))
    done, again = capsys.readouterr().out.splitlines()
    assert done.startswith("ranker: done") and again == "ranker: still good"
    verify(artifact)
    weight = load_ranker(artifact / "model").options.generator_weight
    assert read(artifact)["ranker"]["facts"]["generator_weight"] == weight
    found = measure_ranker(artifact)
    assert set(found["orders"]) == {"user", "item"} and found["users"] == 40
    assert main(["evaluate", str(artifact), "--ranker", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert "both together, order item" in ranker_table(found)
    make_ranker(artifact, "split", shared=False, how=How(threads=1))
    assert "done" in capsys.readouterr().out and not load_ranker(artifact / "model").shared
    generator = load_generator(artifact / "model")
    generator.norm.weight.data += 1
    save_generator(generator, artifact / "model")
    with pytest.raises(ArtifactError, match=r"ranker\.safetensors: was trained on another generator"):
        measure_ranker(artifact)


def test_what_is_missing_is_named(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match=r"ranker\.json: does not exist; `genrec train /.* --ranker`"):
        measure_ranker(artifact)
    with pytest.raises(InputError, match="layers: is 9 "):
        ranker_artifact(World(), artifact, replace(QUICK, layers=9), artifact / "state")
    with pytest.raises(InputError, match=r"order: is 'sideways'.*split, user, item, both"):
        ranker_artifact(World(), artifact, QUICK, artifact / "state", "sideways")
    Histories(np.arange(2), np.arange(6) + 100, np.arange(3) * 3).save(
        artifact / "histories.parquet", ["a", "b"]
    )
    with pytest.raises(InputError, match=r"histories: have no place.*a history of 5 items or more"):
        ranker_artifact(World(), artifact, QUICK, artifact / "state")
    (artifact / "model" / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"config\.json"):
        ranker_artifact(World(), artifact, QUICK, artifact / "state")


def test_bench_trains_rows_and_compares_them(artifact: Path) -> None:
    rows = ("split", "both", "reach", "layers")
    found = train_rows(artifact, rows, (0, 1), replace(QUICK, reach=2, layers=1), None)
    assert [len(found[row]) for row in rows] == [2, 2, 2, 2]
    claims = ratios(found)
    of = [seed["orders"]["split"]["with generator"]["NDCG@10"] for seed in found["split"]]
    assert claims["ranked_over_generator_ndcg10"] == pytest.approx(
        np.mean(of) / found["generator"]["NDCG@10"]
    )
    assert claims["item_over_user_ndcg10"] > 0 and claims["shared_over_own_ndcg10"] is None
    assert all(claims[f"{row}_over_split{how}_ndcg10"] != 1 for row in LESS for how in ("", "_together"))
    settings = HstuNextSettings(max_history=4, hidden_size=8, layers=1, epochs=2, tokens=64)
    found["next"] = train_next(artifact, (0, 1), settings)
    of_next = [seed["with generator"]["NDCG@10"] / found["generator"]["NDCG@10"] for seed in found["next"]]
    by_row = {"split": claims["ranked_over_generator_ndcg10"], "next": pytest.approx(np.mean(of_next))}
    assert ratios(found)["ranked_over_generator_by_row"] == by_row
    assert ratios(found)["ranked_over_generator_ndcg10"] == by_row["next"], "the ranker that reads more"
