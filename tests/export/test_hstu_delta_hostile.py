"""Deltas as hostile or unlucky writers leave them: what cannot be taken in is refused, and a start goes on without."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from export.hstu_delta import export_delta
from genrec import manifest, metrics
from genrec.errors import ArtifactError
from genrec.rank import deltas, hstu_weights
from genrec.rank.hstu_weights import load_weights
from genrec.settings import Settings
from genrec.steps.followed_deltas import FollowedDeltas
from tests.export.test_hstu_delta import ITEMS
from tests.oracles.hstu_further import changed_further

FAR = 2**63 - 1


@pytest.fixture
def artifact(tiny_hstu: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))


def followed(artifact: Path) -> int:
    """The delta that a start ends at."""
    return FollowedDeltas(Settings(artifact, artifact / "arena"), lambda weights: weights.delta).current[0]


@pytest.mark.parametrize(
    ("rows", "kind", "problem"),
    [
        (
            [1, FAR, -FAR + 10, 5],
            torch.float32,
            r"of_item.weight/rows is int64\[4\], not ascending int64\[n\]",
        ),
        ([1], torch.float8_e4m3fn, "delta.safetensors: is not readable: "),
    ],
)
def test_a_start_goes_on_without_it(artifact: Path, rows: list[int], kind: torch.dtype, problem: str) -> None:
    folder = deltas.folder_of(artifact, 1)
    folder.mkdir(parents=True)
    tensors = {f"{ITEMS}/rows": torch.tensor(rows), f"{ITEMS}/values": torch.ones(len(rows), 16).to(kind)}
    save_file(tensors, folder / deltas.FILE, {"format": deltas.FORMAT, "version": deltas.VERSION})
    manifest.record(folder, deltas.STAGE, load_weights(artifact).name, [folder / deltas.FILE], {})
    with pytest.raises(ArtifactError, match=problem):
        load_weights(artifact, 1)
    assert followed(artifact) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_one_that_changes_while_it_is_read_is_refused(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    other = Path(shutil.copytree(artifact, tmp_path / "other"))
    for place, seed in ((artifact, 1), (other, 5)):
        changed_further(place, seed)
        export_delta(place)
    mine, theirs = (deltas.folder_of(place, 1) for place in (artifact, other))
    names = (deltas.FILE, manifest.NAME) if whole else (deltas.FILE,)
    real = hstu_weights.read_delta

    def changed(*given: object) -> deltas.Delta:
        """Others put theirs in its place, and it is read before or after they do."""
        found = real(*given) if whole else None  # type: ignore[arg-type]
        for name in names:
            os.replace(theirs / name, mine / name)
        return found or real(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(hstu_weights, "read_delta", changed)
        with pytest.raises(
            ArtifactError, match="anew while it was read" if whole else "is not the file that"
        ):
            load_weights(artifact, 1)
    assert followed(artifact) == int(whole), "theirs as a whole is sound"


def test_a_link_to_nothing_beside_it_does_no_harm(artifact: Path) -> None:
    changed_further(artifact, 1)
    export_delta(artifact)
    (deltas.folder_of(artifact, 1) / ".#delta.safetensors").symlink_to("somebody@somewhere")  # as Emacs locks
    assert followed(artifact) == 1


def test_deltas_behind_one_that_was_removed_are_told_of(
    artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by who takes old ones for done with. All that was learnt since the export would be gone without a word, and
    the next delta be written before those that are there.
    """
    for number in (1, 2):
        changed_further(artifact, number)
        export_delta(artifact)
    first = deltas.folder_of(artifact, 1).rename(artifact / "elsewhere")
    refused = metrics.DELTA_REFUSALS.value()
    problem = "deltas/1: is missing, and delta 2 is to weights with it; put it in its place again"
    assert (
        followed(artifact) == 0 and metrics.DELTA_REFUSALS.value() == refused + 1 and problem in caplog.text
    )
    with pytest.raises(ArtifactError, match=problem):
        export_delta(artifact)
    first.rename(deltas.folder_of(artifact, 1))
    assert followed(artifact) == 2
