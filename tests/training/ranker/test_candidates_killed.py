"""A ranker's candidates, ended while they are written: the next run removes what was left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.training.ranker.test_ranker import ring_artifact
from training.ranker.candidates import FILE_NAME, load_candidates

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, sys
from pathlib import Path
from training.ranker import candidates as rank_candidates

def write_tensors(path, tensors, metadata):
    path.write_bytes(b"half of it")
    os._exit(9)

rank_candidates.write_tensors = write_tensors
rank_candidates.load_candidates(Path(sys.argv[1]), 2)
"""


def test_of_a_kill_while_candidates_are_written_nothing_stays(tmp_path: Path) -> None:
    artifact = ring_artifact(tmp_path)
    assert subprocess.run([sys.executable, "-c", KILLED, artifact], cwd=ROOT).returncode == 9
    assert list((artifact / "training").iterdir())
    load_candidates(artifact, 2)
    (file,) = (artifact / "training").iterdir()
    assert file.name == FILE_NAME and file.stat().st_mode & 0o777 == 0o644
