"""The loss equals a slow twin, windows cover histories, a resumed run ends in the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.models.config import ModelConfig
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.loss import level_sums, targets_of
from genrec.nn.model import Generator
from training.data import windows
from training.data.histories import Histories
from training.data.windows import batches, cut_windows, gather, training_rows
from training.generator.recipes import RECIPES, Recipe, recipe_for
from training.generator.run import GeneratorRun
from training.generator.train import train_generator
from training.sharded.world import World

TINY = Recipe(
    max_history=8, hidden_size=16, num_hidden_layers=1, head_dim=8, batch_items=64, epochs=4, validate_every=1,
    patience=9,
)  # fmt: skip


def model_of(levels: int) -> Generator:
    torch.manual_seed(levels)
    config = ModelConfig((5, 4, 3)[:levels], 9, 16, 2, 2, 1, 8, 16)
    return Generator(config).eval()


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_loss_equals_one_position_at_a_time(levels: int, share: float) -> None:
    """Of all items, or of half of them. Each target is scored by a pass over its own path, the softmax is over codes
    that lead to an item.
    """
    model, draw = model_of(levels), np.random.default_rng(levels)
    codes = draw.integers(0, (5, 4, 3)[:levels], (14, levels))
    catalogue = Catalogue(np.arange(14), codes, [""] * 14, np.ones(14), (5, 4, 3)[:levels])
    lengths = [5, 2, 4]
    rows, real = draw.integers(0, 14, (3, 5)), np.arange(5) < np.array(lengths)[:, None]
    asked = real & (draw.random((3, 5)) < share)
    given = torch.from_numpy(rows), torch.from_numpy(asked)
    got = level_sums(model, Tree.of(catalogue), *given) / targets_of(given[1], levels)
    sums, counts = np.zeros(levels), np.zeros(levels)
    for history, n, of_them in zip(rows, lengths, asked, strict=True):
        tokens = (codes[history[:n]] + np.array(model.config.code_offsets)).ravel()
        for place in range(1, len(tokens)):
            item, level = divmod(place, levels)
            if not of_them[item]:
                continue
            target = codes[history[item]]
            valid = sorted({int(c[level]) for c in codes if (c[:level] == target[:level]).all()})
            hidden = model.prefill(torch.from_numpy(tokens[None, :place]))[0][0, -1]
            scores = F.log_softmax(model.head(hidden, level + 1)[valid], -1)
            sums[level] -= scores[valid.index(int(target[level]))].item()
            counts[level] += 1
    np.testing.assert_allclose(got.detach().numpy(), sums / counts, rtol=1e-5, atol=1e-7)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(2, 9), st.integers(0, 99))
def test_windows_cover_every_transition(lengths: list[int], size: int, seed: int) -> None:
    offsets, rng = np.cumsum([0, *lengths]), np.random.default_rng(seed)
    windows = cut_windows(offsets, size, rng)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    assert all(2 <= b - a <= size and owner[a] == owner[b - 1] for a, b in windows)
    for start, n in zip(offsets, lengths, strict=False):
        if n >= 2:  # the newest items are one window, as long as it may be
            assert [max(start, start + n - size), start + n] in windows.tolist()
        of_user = ((windows[:, 0] >= start) & (windows[:, 1] <= start + n)).sum()
        assert n > size or of_user == (n >= 2), "a short history is one window"
    seen = {i for a, b in windows for i in range(a, b)}
    lost = [i for start, n in zip(offsets, lengths, strict=False) if n >= 2 for i in range(start, start + n)]
    # Only a window of a single item, at the oldest end, is dropped.
    assert all(i - 1 not in lost or i in offsets[:-1] for i in set(lost) - seen)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=8), st.integers(2, 9), st.integers(0, 99))
def test_what_is_held_out_is_in_no_window(lengths: list[int], size: int, seed: int) -> None:
    """The others are as if it were not there."""
    offsets, (one, other) = np.cumsum([0, *lengths]), (np.random.default_rng(seed) for _ in range(2))
    found = cut_windows(offsets, size, one, offsets[1:] - 2)
    users = (cut_windows(np.array([start, stop - 2]), size, other) for start, stop in pairwise(offsets))
    assert found.tolist() == np.concatenate(list(users)).tolist()


def test_chance_says_where_a_long_history_is_cut_and_which_batch_comes_first() -> None:
    draw, cuts, orders = np.random.default_rng(0), set(), set()
    whole = np.arange(2, 12)
    for _ in range(100):
        windows = cut_windows(np.array([0, 30]), 5, draw)
        assert len(set(map(tuple, windows.tolist()))) == len(windows)
        cuts.add(int(windows[1, 1]))
        each_alone = batches(np.stack((np.zeros_like(whole), whole), 1), 1, draw)
        orders.add(tuple(int(group[0, 1]) for group in each_alone))
    assert cuts == {25, 26, 27, 28, 29} and len(orders) > 90


@settings(deadline=None)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 99))
def test_batches_hold_each_window_once(lengths: list[int], items: int, seed: int) -> None:
    stops = np.cumsum(lengths)
    windows = np.stack((stops - lengths, stops), axis=1)
    groups = batches(windows, items, np.random.default_rng(seed))
    assert sorted(map(tuple, np.concatenate(groups))) == sorted(map(tuple, windows))
    full, held = 0, 0  # batches that are full before the last, each as soon as the next window has no room
    for length in sorted(lengths):
        no_room = held and (held + 1) * length > items
        full, held = (full + 1, 1) if no_room else (full, held + 1)
    assert len(groups) == full + 1
    for group in groups:
        longest = (group[:, 1] - group[:, 0]).max()
        assert len(group) == 1 or len(group) * longest <= items
        rows = gather(np.arange(stops[-1]) * 3, group)
        assert rows.shape == (len(group), longest)
        for row, (a, b) in zip(rows, group, strict=True):
            assert row[row >= 0].tolist() == [3 * i for i in range(a, b)]
            assert (row[: b - a] >= 0).all()


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8),
    st.sets(st.integers(0, 9)),
    st.integers(1, 9),
)
def test_unknown_items_leave_the_training_rows(users: list[list[int]], known: set[int], block: int) -> None:
    row_of = {item: row for row, item in enumerate(sorted(known, reverse=True))}
    items = np.array([item for user in users for item in user], np.int64)
    histories = Histories(np.arange(len(users)), items, np.cumsum([0, *map(len, users)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "BLOCK_ITEMS", block)
        rows, offsets = training_rows(
            histories, lambda ids: np.array([row_of.get(i, -1) for i in ids], np.int32)
        )
    found = [rows[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == [[row_of[item] for item in user if item in known] for user in users]


def data(users: int = 40, items: int = 30) -> tuple[Histories, Catalogue]:
    """Walks around a ring: the next item is nearly always the one two further on."""
    draw = np.random.default_rng(3)
    lengths = draw.integers(4, 20, users)
    rows = [(draw.integers(items) + 2 * np.arange(n) + (draw.random(n) < 0.1)) % items for n in lengths]
    histories = Histories(np.arange(users), np.concatenate(rows), np.concatenate(([0], np.cumsum(lengths))))
    codes = np.stack((np.arange(items) // 5, np.arange(items) % 5), axis=1)
    popularity = np.bincount(histories.cut(2).items, minlength=items)
    return histories, Catalogue(np.arange(items), codes, [""] * items, popularity, (6, 5))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def trained(
    folder: Path, settings: Recipe = TINY, **other: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and report, saved at every step."""
    torch.set_num_threads(1)
    histories, catalogue = data()
    books = [torch.linspace(-1, 1, 7 * size).sin().view(size, 7) for size in (6, 5)]
    best, report = train_generator(
        World(), histories, catalogue, settings, folder, 5, codebooks=books, save_every_s=0.0, **other
    )
    return best.state_dict(), report


def test_it_learns_and_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in the middle of an epoch, with dropout."""
    whole, report = trained(tmp_path / "a")
    assert [each["epoch"] for each in report["log"]] == [1, 2, 3, 4] and report["resumed_after_step"] == 0
    assert report["log"][-1]["loss"] < report["log"][0]["loss"]

    def ended(run: GeneratorRun, batch: np.ndarray, done: float, step=GeneratorRun.step) -> float:
        if run.steps == 11:
            raise KeyboardInterrupt
        return step(run, batch, done)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(GeneratorRun, "step", ended)
        trained(tmp_path / "b")
    assert not any(path.suffix in (".pkl", ".pt", ".bin") for path in tmp_path.rglob("*"))
    weights, rest = trained(tmp_path / "b")
    assert rest["resumed_after_step"] == 11 and same(weights, whole)
    assert [each["loss"] for each in rest["log"]] == [each["loss"] for each in report["log"]]
    again, finished = trained(tmp_path / "b")
    assert finished["log"] == rest["log"] and same(again, whole)


def test_it_is_validated_every_few_epochs_and_at_the_end(tmp_path: Path) -> None:
    _, report = trained(tmp_path, replace(TINY, epochs=3, validate_every=2))
    assert [each["epoch"] for each in report["log"]] == [2, 3]


def test_early_stop_and_minutes(tmp_path: Path) -> None:
    _, report = trained(tmp_path / "a", replace(TINY, learning_rate=0.0, patience=2, epochs=30))
    assert [each["epoch"] for each in report["log"]] == [1, 2, 3]
    _, report = trained(tmp_path / "b", minutes=1e-6)
    assert [each["epoch"] for each in report["log"]] == [1]


def test_histories_of_held_out_items_alone_are_refused(tmp_path: Path) -> None:
    """Three items each: one to validate, one to test, and one that comes after nothing."""
    histories, catalogue = data()
    short = Histories(np.arange(5), histories.items[:15], np.arange(6) * 3)
    with pytest.raises(InputError, match=r"events: are none that can be learnt \(accepted: users with two"):
        train_generator(World(), short, catalogue, TINY, tmp_path)


def test_checkpoint_round_trip_and_refusals(tmp_path: Path) -> None:
    model = model_of(3)
    save_generator(model, tmp_path)
    back = load_generator(tmp_path)
    assert same(back.state_dict(), model.state_dict()) and back.config == model.config
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 20}))
    with pytest.raises(ArtifactError, match=r"gate_proj.* has shape"):
        load_generator(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ArtifactError, match=r"lacks the tensor model\.layers\.2"):
        load_generator(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ArtifactError, match="not a readable safetensors"):
        load_generator(tmp_path)


@given(st.integers(1, 10**6), st.integers(1, 10**8))
def test_unknown_data_gets_room_enough(items: int, interactions: int) -> None:
    chosen = recipe_for("own", items, interactions)
    assert np.prod(chosen.codebook_sizes) >= items
    assert chosen.epochs >= 3
    assert recipe_for("ml-100k", items, interactions) == RECIPES["ml-100k"]
