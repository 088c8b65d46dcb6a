"""HSTU for the next item: its loss, what a state may depend on, how it is measured, and that training learns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.nn import whole_softmax
from genrec.nn.hstu_checkpoint import load_hstu_next, save_hstu
from genrec.nn.hstu_next import HstuNext, vectors
from genrec.nn.hstu_plain import plain_attention
from genrec.rank.hstu import NEXT_CONFIG
from tests.training.ranker.test_ranker import ring_artifact
from training.data.histories import Histories
from training.generator.evaluate import PAD, evaluate, metrics
from training.hstu_next.batches import events_of, groups_of, places_in, spans_before, training_spans
from training.hstu_next.measure import candidate_scores, ranks_of, with_few
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed, load_timed
from training.hstu_next.train import train_hstu_next
from training.ranker.candidates import Candidates, places_of
from training.sharded.world import World

ITEMS, USERS, MOST = 80, 60, 16
SETTINGS = HstuNextSettings(
    max_history=MOST, hidden_size=16, layers=2, dropout=0.0, epochs=12, validate_every=4, tokens=400,
    learning_rate=5e-3, averaging=0.9,
)  # fmt: skip


def some_timed(seed: int = 0) -> Timed:
    """Users of 25 to 40 events who go one item on where they come back at once, and two after a day."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(25, 41, USERS)
    rows, times = [], []
    for length in lengths:
        waits = rng.choice([10, 86_400], length)
        times.append(10**9 + np.cumsum(waits))
        rows.append((rng.integers(ITEMS) + np.cumsum(np.where(waits == 10, 1, 2))) % ITEMS)
    return Timed(np.concatenate(([0], np.cumsum(lengths))), np.concatenate(rows), np.concatenate(times))


def fresh_model(settings: HstuNextSettings = SETTINGS) -> HstuNext:
    torch.manual_seed(0)
    return HstuNext(settings.model(ITEMS, (8, 8)), torch.randint(0, 8, (ITEMS, 2)))


def some_model() -> HstuNext:
    """One whose weights, biases of attention too, are large enough to matter."""
    model = fresh_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def states(model: HstuNext, timed: Timed, spans: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return model.states(events_of(timed, spans), model.rows())


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
def test_loss_and_gradients_equal_a_plain_softmax(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(whole_softmax, "BLOCK_SCORES", block)
    torch.manual_seed(0)
    given = [F.normalize(torch.randn(n, 8), dim=1) for n in (25, 13)]
    wanted, found = torch.randint(0, 13, (25,)), []
    for plain in (False, True):
        s, v = (
            each.to(torch.float64 if plain else torch.float32).requires_grad_()
            for each in map(torch.clone, given)
        )
        if plain:
            loss = F.cross_entropy(s @ v.T / 0.05, wanted, reduction="sum")
        else:
            loss = whole_softmax.whole_softmax_loss(s, v, wanted, 0.05)
        (3 * loss).backward()
        found.append([loss.detach(), s.grad, v.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_a_state_sees_what_came_before_and_when_the_next_is_asked_for() -> None:
    timed, model = some_timed(), some_model()
    span = np.array([[0, 12]])
    before = states(model, timed, span)
    for place in range(13):
        rows, times = timed.rows.copy(), timed.times.copy()
        rows[place] = (rows[place] + 1) % ITEMS
        equal = (before == states(model, replace(timed, rows=rows), span)).all(1).numpy()
        assert equal[:place].all() and not equal[place:].any(), "the item: from its own token on"
        times[place:] += 10**7
        equal = (before == states(model, replace(timed, times=times), span)).all(1).numpy()
        assert equal[: max(place - 1, 0)].all(), "its time: from the token before it on"
        assert place == 0 or not equal[place - 1]


def test_fused_and_plain_give_the_same_states_and_gradients() -> None:
    timed, found = some_timed(), []
    events = events_of(timed, training_spans(timed, MOST, np.random.default_rng(0))[:20])
    for attend in (None, plain_attention):
        model = some_model()
        for layer in model.layers:
            layer.attend = attend or layer.attend
        of = model.states(events, model.rows())
        (of * torch.arange(16)).square().mean().backward()
        found.append([of.detach(), *(each.grad for each in model.parameters())])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def test_training_reads_all_but_the_two_newest() -> None:
    timed = some_timed()
    spans = training_spans(timed, MOST, np.random.default_rng(1))
    read, place = places_in(spans)
    user = np.searchsorted(timed.offsets, read, "right") - 1
    assert (read + 1 < timed.offsets[user + 1] - 2).all(), "what is predicted is none of the two newest"
    assert (spans[:, 1] - spans[:, 0] <= MOST).all() and place.max() < MOST
    groups = groups_of(spans, 200, np.random.default_rng(0))
    assert sorted(map(tuple, np.concatenate(groups).tolist())) == sorted(map(tuple, spans.tolist()))
    sizes = [int((group[:, 1] - group[:, 0]).sum()) for group in groups]
    assert max(sizes) < 200 + MOST and np.mean(sizes[:-1]) == pytest.approx(200, abs=MOST)


def test_ranks_equal_the_generator_s_way_to_measure() -> None:
    """The same scores as a recommender that `training.generator.evaluate` asks, seen items of the history removed."""
    timed, model = some_timed(), some_model()
    histories = Histories(np.arange(USERS), timed.rows, timed.offsets)
    for split in ("validation", "test"):
        places = places_of(timed.lengths, split, 0)
        with torch.no_grad():
            scores = model.scores(events_of(timed, spans_before(timed, places, MOST))).numpy()
        of_history = {
            tuple(timed.rows[timed.offsets[u] :][:cut]): line
            for (u, cut), line in zip(places, scores, strict=True)
        }

        def recommend(given: list[np.ndarray], k: int, remove_seen: bool, of: Any = of_history) -> np.ndarray:
            answers = np.full((len(given), k), PAD)
            for answer, history in zip(answers, given, strict=True):
                best = [i for i in np.argsort(-of[tuple(history)]) if i not in history][:k]
                answer[: len(best)] = best
            return answers

        wanted = evaluate(recommend, histories, split)
        found = metrics(ranks_of(model, timed, places, ""))
        assert found == pytest.approx({name: wanted[name] for name in found}), split
        assert 0 < found["HR@10"] < 1


class ByNewest(torch.nn.Module):
    """A model whose scores [I] are those of `table` for the newest item."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.config, self.table = SETTINGS.model(len(table), (8, 8)), torch.nn.Parameter(torch.tensor(table))

    def scores(self, events: Any) -> torch.Tensor:
        return self.table[events.item[events.newest]]


def test_ranks_and_candidates_by_hand() -> None:
    timed = Timed(np.array([0, 3, 6, 10]), np.array([0, 1, 2, 2, 0, 3, 1, 0, 1, 0]), np.zeros(10, np.int64))
    model: Any = ByNewest([[9.0, 4, 5, 5], [9, 8, 4, 6], [0, 0, 0, 0], [0, 0, 0, 0]])
    places = np.array([[0, 2], [1, 2], [2, 3]])
    # User 0, newest 1: of 2 and 3, which are not seen, 3 is better. User 1, newest 0: 1 and 3 are left, 3 wins.
    # User 2 takes item 0 again, which was removed with the other seen one: a miss, few as the items are.
    assert ranks_of(model, timed, places, "").tolist() == [1, 0, 10]
    assert [with_few(timed, places, items) for items in (4, 12, 13)] == [3, 3, 0], "user 2 saw one twice"
    tied: Any = ByNewest([[9.0, 5, 5, 5]] * 4)
    assert ranks_of(tied, timed, places[:2], "").tolist() == [1, 1], "of equals, the wanted one is the last"
    at = Candidates(
        np.array([0, 1], np.int32), np.array([2, 2], np.int32), np.array([2, 3], np.int32),
        np.array([[3, 2, -1], [1, 3, -1]], np.int32), np.array([[-1, -2, -np.inf]] * 2, np.float32),
    )  # fmt: skip
    assert candidate_scores(model, timed, at, "").tolist() == [[6, 4, -math.inf], [4, 5, -math.inf]]


def test_scores_that_are_no_numbers_find_nothing() -> None:
    timed, model = some_timed(), some_model()
    with torch.no_grad():
        model.of_item.weight[:] = torch.nan
    places = places_of(timed.lengths, "test", 0)
    assert metrics(ranks_of(model, timed, places, "nan"), (10,)) == {"HR@10": 0, "NDCG@10": 0}


def test_training_learns_what_follows_and_that_it_depends_on_the_wait(tmp_path: Path) -> None:
    timed = some_timed()
    settings = replace(SETTINGS, epochs=24, learning_rate=1e-2)
    kept, report = train_hstu_next(World(), timed, fresh_model(), settings, tmp_path / "state")
    places = places_of(timed.lengths, "test", 0)
    hit = metrics(ranks_of(kept, timed, places, ""), (1,))["HR@1"]
    blind = replace(timed, times=np.zeros_like(timed.times))
    # All items are as popular; who does not know the wait has two to choose from.
    assert hit > 0.8, report
    assert metrics(ranks_of(kept, blind, places, ""), (1,))["HR@1"] < hit - 0.2


def test_histories_of_held_out_items_alone_are_refused(tmp_path: Path) -> None:
    timed = Timed(np.arange(5) * 3, np.arange(12) % ITEMS, np.zeros(12, np.int64))
    with pytest.raises(InputError, match="events: are none that can be learnt"):
        train_hstu_next(World(), timed, fresh_model(), SETTINGS, tmp_path)


def test_a_model_is_the_same_from_disk(tmp_path: Path) -> None:
    timed, model = some_timed(), some_model()
    save_hstu(model, tmp_path)
    events = events_of(timed, spans_before(timed, places_of(timed.lengths, "test", 0), MOST))
    with torch.no_grad():
        assert torch.equal(load_hstu_next(tmp_path).scores(events), model.scores(events))
    assert torch.allclose(vectors(model.rows()).norm(dim=1), torch.ones(ITEMS))
    (tmp_path / NEXT_CONFIG).write_text(
        (tmp_path / NEXT_CONFIG).read_text().replace('"layers": 2', '"layers": 3')
    )
    with pytest.raises(ArtifactError, match="no HSTU"):
        load_hstu_next(tmp_path)


def test_times_are_those_of_the_histories(tmp_path: Path) -> None:
    """Items that the catalogue lacks take theirs along."""
    codes = np.zeros((3, 2), np.int32)
    catalogue = Catalogue(np.array([70, 80, 90]), codes, ["", "", ""], np.ones(3, np.int64), (2, 2))
    times = np.array([1, 2, 3, 4, 1, 1, 9])
    offsets = np.array([0, 4, 7])
    histories = Histories(np.array([5, 9]), np.array([70, 60, 90, 80, 70, 80, 60]), offsets, times)
    histories.save(tmp_path / "histories.parquet", ["a", "b"])
    timed = load_timed(tmp_path, catalogue)
    assert (timed.rows.tolist(), timed.times.tolist()) == ([0, 2, 1, 0, 1], [1, 3, 4, 1, 1])
    assert timed.offsets.tolist() == [0, 3, 5] and timed.known
    replace(histories, times=None).save(tmp_path / "histories.parquet", ["a", "b"])
    timed = load_timed(tmp_path, catalogue)
    assert timed.times.tolist() == [0] * 5 and not timed.known


def test_a_user_s_own_timestamps_are_learnt_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From two files to figures: the item depends on when it is asked for, and on nothing else."""
    timed = some_timed()
    user = np.repeat(np.arange(USERS), timed.lengths)
    lines = [f"{u},{r},{t}" for u, r, t in zip(user, timed.rows, timed.times, strict=True)]
    (tmp_path / "seen.csv").write_text("\n".join(["user,item,timestamp", *lines]))
    (tmp_path / "items.csv").write_text("item,title\n" + "".join(f"{i},item {i}\n" for i in range(ITEMS)))
    recipe = tmp_path / "quick.json"
    said = {"max_history": MOST, "hidden_size": 16, "layers": 2, "dropout": 0.0, "epochs": 24, "tokens": 400,
            "validate_every": 4, "learning_rate": 0.01, "averaging": 0.9}  # fmt: skip
    recipe.write_text(json.dumps({"recipe": "hstu-next", **said}))
    artifact = str(tmp_path / "out")
    files = ["--interactions", str(tmp_path / "seen.csv"), "--items", str(tmp_path / "items.csv")]
    assert main(["data", artifact, *files, "--codebook-sizes", "8,8"]) == 0
    assert main(["train", artifact, "--recipe", str(recipe), "--threads", "1"]) == 0
    assert "has no times" not in capsys.readouterr().out
    assert main(["evaluate", artifact, "--recipe", "hstu-next", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["whole catalogue"]["NDCG@10"] > 0.9, (
        "who does not know when: 0.82, of two items that are as likely"
    )


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ring of 12 items without times: the next is always the one behind; the generator has learnt nothing."""
    artifact = ring_artifact(tmp_path)
    recipe = tmp_path / "quick.json"
    said = {"recipe": "hstu-next", "max_history": 8, "hidden_size": 16, "layers": 1, "epochs": 30, "tokens": 60,
            "validate_every": 10, "learning_rate": 0.01, "averaging": 0.9}  # fmt: skip
    recipe.write_text(json.dumps(said))
    assert main(["train", str(artifact), "--recipe", str(recipe), "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert "hstu-next: done" in told and "histories.parquet has no times" in told
    assert main(["evaluate", str(artifact), "--recipe", "hstu-next", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["users"] == 40 and found["whole catalogue"]["NDCG@10"] > 0.95
    assert found["the same, by HSTU"]["NDCG@10"] == pytest.approx(found["whole catalogue"]["NDCG@10"])
    assert found["generator's candidates, its order"]["NDCG@10"] < 0.8
    assert main(["evaluate", str(artifact), "--recipe", "hstu-next"]) == 0
    assert "\n40 users with at most 10 unseen items: one of these is a hit in any" in capsys.readouterr().out
    assert main(["bench", "next_quality", str(artifact)]) == 0
    saved = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert saved["whole_ndcg10"] == {artifact.name: found["whole catalogue"]["NDCG@10"]}
    assert saved["ranked_over_generator_ndcg10"][artifact.name] > 1.2
    assert saved["artifacts"][artifact.name]["learnt"]["epochs"] == 30
    with pytest.raises(InputError, match="temperature: is"):
        HstuNextSettings(temperature=0.01)
    with pytest.raises(InputError, match="hidden_size: is 10"):
        HstuNextSettings(hidden_size=10, heads=3)
