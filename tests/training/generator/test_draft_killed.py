"""A draft head and its generator that learn together, killed while both are put in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from genrec.manifest import is_good, making, verify
from genrec.nn.draft_checkpoint import load_draft
from tests.training.ranker.test_ranker import ring_artifact

ROOT = Path(__file__).resolve().parents[3]
DIES = """
import os, sys
from cli.main import main
def replace(old, new, known=os.replace):
    if "/model/" in str(new) or str(new).endswith("manifest.json"):
        next(left, None) or os._exit(9)
    known(old, new)
left, os.replace = iter([True] * int(sys.argv[1])), replace
main(sys.argv[2:])
"""


@pytest.mark.parametrize("renames", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_killed_among_the_renames_it_goes_on(
    tmp_path: Path, renames: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator is renamed, then its entry in the manifest, then the head, then its entry."""
    artifact, recipe = ring_artifact(tmp_path), tmp_path / "mine.json"
    recipe.write_text('{"recipe": "draft", "joint": true, "epochs": 2}')
    train = ["train", str(artifact), "--recipe", str(recipe), "--threads", "1"]
    killed = subprocess.run([sys.executable, "-c", DIES, str(renames), *train], cwd=ROOT)
    assert killed.returncode == 9
    with making(artifact, "train"):  # whatever comes next
        assert is_good(artifact, "train", "as made")
    assert main(train) == 0 and "draft: goes on after step" in capsys.readouterr().out
    assert load_draft(artifact / "model")
    verify(artifact)
