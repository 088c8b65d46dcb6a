"""A generator that another process trains while something is trained over the one before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import training.generator.draft as draft_anew
import training.generator.draft_further as draft_further
import training.ranker.further as ranker_further
import training.ranker.train as ranker_anew
from cli.chain import How, make_draft
from cli.main import main
from genrec.errors import ArtifactError
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.draft_checkpoint import load_draft
from genrec.nn.ranker_checkpoint import load_ranker
from tests.training.files_learnt import HEAD
from tests.training.ranker.test_ranker_further import artifact

__all__ = ["artifact"]
LOAD = {"ranker": load_ranker, "draft": load_draft}


@pytest.mark.parametrize(
    ("name", "module", "work"),
    [
        ("ranker", ranker_anew, "train_ranker"),
        ("ranker", ranker_further, "train_further"),
        ("draft", draft_anew, "train_draft"),
        ("draft", draft_further, "train_further"),
    ],
    ids=["ranker", "ranker, further", "draft head", "draft head, further"],
)
def test_what_was_trained_over_the_one_before_is_refused(
    artifact: Path,
    name: str,
    module: object,
    work: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, recipe = artifact / "model", artifact.parent / "mine.json"
    recipe.write_text(f'{{"recipe": "{name}", "learning_rate": 0.001}}')
    command = ["train", str(artifact), "--recipe", str(recipe), "--threads", "1"]
    if work == "train_further":
        make_draft(artifact, How(threads=1), {"epochs": 1, "batch_items": 256})
        events = artifact.parent / "events.csv"
        events.write_text(HEAD + "3,i7,100\n3,i2,101\n")
        command += ["--events", str(events)]
    trains: Callable[..., object] = getattr(module, work)

    def meanwhile(*given: object) -> object:
        found, other = trains(*given), load_generator(model)
        other.lm_head.weight.data *= -1
        save_generator(other, model)
        return found

    monkeypatch.setattr(module, work, meanwhile)
    assert main(command) == 0
    with pytest.raises(ArtifactError, match="was trained on another generator"):
        LOAD[name](model)
