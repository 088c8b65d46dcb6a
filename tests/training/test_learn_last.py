"""What is told before a model learns events, so that no learning is lost at its end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from genrec import files, manifest
from genrec.errors import ArtifactError
from training.further import Further, learn_last
from training.sharded.world import World

MODEL = Further("hstu", "HSTU ranker", "hstu.safetensors")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A model of one file, and a file of events beside it."""
    folder = tmp_path / "artifact"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / MODEL.weights).write_text("0")
    manifest.record(folder, MODEL.stage, "made", [folder / "model" / MODEL.weights], {})
    (tmp_path / "monday.csv").write_text("of monday")
    return folder


class Learner:
    """Counts how often it learns."""

    def __init__(self, artifact: Path) -> None:
        self.artifact, self.times = artifact, 0

    def __call__(self) -> None:
        learn_last(World(), self.artifact, MODEL, [self.artifact.parent / "monday.csv"], self.learn)

    def learn(self) -> tuple[Any, dict[str, Any]]:
        self.times += 1
        return lambda folder: (folder / MODEL.weights).write_text("1"), {}


@contextmanager
def closed(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file can be made in it, whoever asks."""
    make = files.tempfile.TemporaryFile

    def refuse(*given: Any, dir: Path, **more: Any) -> Any:
        if dir == folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))
        return make(*given, dir=dir, **more)

    with patch.context() as patched:
        patched.setattr(files.tempfile, "TemporaryFile", refuse)
        yield


@pytest.mark.parametrize("inner", ["", "model"])
def test_an_artifact_that_cannot_be_written_to_learns_nothing(
    artifact: Path, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, learner = artifact / inner, Learner(artifact)
    with (
        closed(folder, monkeypatch),
        pytest.raises(ArtifactError, match=f"^{folder}: cannot be written to: Read-only file system$"),
    ):
        learner()
    assert learner.times == 0
    learner()
    assert learner.times == 1


def test_nor_does_one_whose_model_is_made_by_another_process(artifact: Path) -> None:
    """That of the two which ends last would be refused."""
    learner = Learner(artifact)
    with manifest.making(artifact, MODEL.stage), pytest.raises(ArtifactError, match="another process makes"):
        learner()
    assert learner.times == 0
    learner()
    assert learner.times == 1


def test_what_was_learnt_already_is_told_of_a_closed_one_too(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(artifact)
    learner()
    with closed(artifact, monkeypatch):
        learner()
    assert learner.times == 1
