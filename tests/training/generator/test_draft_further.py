"""A draft head trained further: from its own weights, it learns what its generator, as it is now, expects."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli.chain import How, make_draft
from cli.main import main
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.errors import ArtifactError
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import OPTIONS, WEIGHTS, load_draft
from genrec.nn.draft_head import DraftHead
from genrec.nn.model import Generator
from tests.training.files_learnt import HEAD, check_completed, check_days, check_two_ranks
from tests.training.generator.test_generator_further import NONE, artifact, some_model, some_older, some_users
from training.generator.draft import DraftSettings, fresh_head, head_loss
from training.generator.draft_further import DraftFurtherRun, train_further
from training.generator.further import Newer
from training.sharded.world import World

__all__ = ["artifact"]
SETTINGS = DraftSettings(learning_rate=0.02, averaging=0.9, batch_items=64)
MODEL = "model/model.safetensors"


def some_head(generator: Generator, options: DraftConfig | None = None) -> DraftHead:
    """Of a generator that changes after it: its level 1 is then another's."""
    head = fresh_head(generator, options or DraftConfig(), SETTINGS, 0).eval()
    torch.nn.init.normal_(generator.lm_head.weight, std=0.3)
    return head


def learn(world: World, rate: float = 0.02) -> tuple[DraftHead, DraftHead, dict[str, Any]]:
    """The head before and after."""
    newer, catalogue = some_users()
    generator = some_model(catalogue)
    head = some_head(generator)
    settings, given = replace(SETTINGS, learning_rate=rate), copy.deepcopy(head)
    return head, *train_further(world, given, generator, catalogue, newer, some_older(newer), settings)


def further(world: World) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in learn(world)[1].state_dict().items()}


@pytest.mark.long
def test_two_ranks_end_where_one_ends() -> None:
    check_two_ranks(further)


def loss_of(generator: Generator, head: DraftHead, catalogue: Catalogue, newer: Newer) -> float:
    """Of all that is to be learnt, as the first updates of a training would see it."""
    run = DraftFurtherRun(World(), copy.deepcopy(head), generator, SETTINGS, catalogue, newer, 0)
    with torch.no_grad():
        found = [
            float(head_loss(run, run.model, each, np.arange(len(each)), True, 0.01))
            for each in run.batches(0)
        ]
    return float(np.mean(found))


def test_it_begins_with_the_head_and_learns() -> None:
    before, kept, _ = learn(World(), rate=1e-12)
    moved = {name for name, each in kept.state_dict().items() if not each.allclose(before.state_dict()[name])}
    assert moved == {"state_heads.0.weight"}, "level 1 is the generator's own"
    newer, catalogue = some_users()
    generator = some_model(catalogue)
    head = some_head(generator)
    first = generator.lm_head.weight[: catalogue.codebook_sizes[0]]
    as_it_was = {name: each.clone() for name, each in generator.state_dict().items()}
    kept, report = train_further(World(), copy.deepcopy(head), generator, catalogue, newer, NONE, SETTINGS)
    assert torch.equal(kept.state_heads[0].weight, first) and not torch.equal(
        head.state_heads[0].weight, first
    )
    assert all(torch.equal(as_it_was[name], each) for name, each in generator.state_dict().items())
    assert loss_of(generator, kept, catalogue, newer) < loss_of(generator, head, catalogue, newer) - 0.05
    assert (report["events"], report["users"], report["replayed"]) == (len(newer.learnt), 20, 0)


def test_a_head_that_learns_level_1_too_keeps_it() -> None:
    newer, catalogue = some_users()
    generator = some_model(catalogue)
    head, slow = some_head(generator, DraftConfig("none", True)), replace(SETTINGS, learning_rate=1e-12)
    kept, _ = train_further(World(), copy.deepcopy(head), generator, catalogue, newer, NONE, slow)
    assert all(each.allclose(head.state_dict()[name]) for name, each in kept.state_dict().items())


@pytest.fixture
def drafting(artifact: Path) -> Path:
    """With a draft head."""
    make_anew(artifact)
    return artifact


def make_anew(artifact: Path) -> None:
    make_draft(artifact, How(threads=1), {"epochs": 1, "batch_items": 256})


def test_a_day_after_the_other(drafting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    monday, tuesday = drafting.parent / "monday.csv", drafting.parent / "tuesday.csv"
    monday.write_text(HEAD + "u3,i20,100\nnew,i21,101\nu3,i4,102\nu3,i4,102\n")
    tuesday.write_text(HEAD + "new,i22,200\nu3,i4,102\nu3,i5,1\n")
    unmoved = [(drafting / name).read_bytes() for name in (MODEL, f"model/{OPTIONS}")]
    train = ["train", str(drafting), "--draft", "alone", "--events"]
    check_days(drafting, "draft", WEIGHTS, train, [monday, tuesday], [2, 2], capsys)
    assert unmoved == [(drafting / name).read_bytes() for name in (MODEL, f"model/{OPTIONS}")]


def test_over_a_generator_that_has_learnt_since(drafting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until then the head is refused."""
    events, model = drafting.parent / "events.csv", drafting / "model"
    events.write_text(HEAD + "u3,i20,100\n")
    assert main(["train", str(drafting), "--events", str(events)]) == 0
    assert f"by `genrec train {drafting} --draft alone --events {events}`, then" in capsys.readouterr().out
    with pytest.raises(ArtifactError, match="was trained on another generator"):
        load_draft(model)
    assert main(["train", str(drafting), "--draft", "alone", "--events", str(events)]) == 0
    first = Catalogue.load(drafting / "catalogue.parquet").codebook_sizes[0]
    assert torch.equal(load_draft(model).state_heads[0].weight, load_generator(model).lm_head.weight[:first])
    manifest.verify(drafting)
    capsys.readouterr()
    for says in ("draft: done", "draft: still good"):
        make_anew(drafting)
        assert says in capsys.readouterr().out, "of another generator than the first"


def test_before_a_generator_that_learns_the_same_file(
    drafting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has learnt the file does not learn it again, so the command that helps is told."""
    events = drafting.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    train = ["train", str(drafting), "--draft", "alone", "--events", str(events)]
    assert main(train) == 0 and main(["train", str(drafting), "--events", str(events)]) == 0
    capsys.readouterr()
    assert main(train) != 0
    said = capsys.readouterr()
    assert said.out == f"draft: has learnt {events}\n"
    anew = f"`genrec train {drafting} --draft alone` makes it anew"
    assert f"was trained on another generator than model.safetensors; {anew}" in said.err


def test_ended_between_weights_and_manifest_it_is_completed(
    drafting: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = drafting.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,100\n")
    check_completed(
        drafting, "draft", ["train", str(drafting), "--draft", "alone", "--events", str(events)], capsys, monkeypatch
    )  # fmt: skip


def test_what_is_not_read_is_told(drafting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, recipe = drafting.parent / "events.csv", drafting.parent / "mine.json"
    events.write_text(HEAD + "u3,i20,100\n")
    recipe.write_text('{"recipe": "draft", "epochs": 3, "batch_items": 64}')
    weights = drafting / "model" / WEIGHTS
    before = weights.read_bytes()
    for more, problem in (
        (["--draft", "joint"], "joint: is asked for with --events (accepted: --draft alone, once"),
        (["--draft", "alone", "--minutes", "1"], "minutes: is given with --events"),
        (["--recipe", str(recipe)], "recipe: sets epochs with --events"),
    ):
        assert main(["train", str(drafting), "--events", str(events), *more]) != 0
        assert problem in capsys.readouterr().err and weights.read_bytes() == before
