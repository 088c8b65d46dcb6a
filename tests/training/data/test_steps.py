"""A stage that was ended at any point goes on after its last whole step, to the files it would have made."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec.errors import ArtifactError
from tests.training.shops import many
from training.data.steps import Steps
from training.stages import prepare, tokenise

ROOT = Path(__file__).resolve().parents[3]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # sums in one order


def test_steps_are_made_once_and_again_for_another_key(tmp_path: Path) -> None:
    made: list[str] = []

    def work(name: str, failing: type[Exception] | None = None) -> None:
        with Steps(tmp_path / "steps", name[0]) as steps:
            for each in ("one", "two"):
                steps.make(each, lambda path, each=each: (made.append(name + each), path.write_text(each)))
            if failing:
                raise failing("here", "is wrong")

    with pytest.raises(OSError):
        work("a", OSError)  # no room, say
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == ["key", "one", "two"]
    work("a again")
    assert made == ["aone", "atwo"] and not (tmp_path / "steps").exists()
    with pytest.raises(OSError):
        work("a", OSError)
    with pytest.raises(ArtifactError):
        work("b", ArtifactError)
    assert made[2:] == ["aone", "atwo", "bone", "btwo"] and not (tmp_path / "steps").exists()


def test_a_step_that_fails_is_not_there(tmp_path: Path) -> None:
    def work(path: Path) -> None:
        path.write_text("half")
        raise OSError("no room")

    with pytest.raises(OSError), Steps(tmp_path / "steps", "") as steps:
        steps.make("one", work)
    assert not (tmp_path / "steps").exists()


ENDED = """
import sys, os, signal
from pathlib import Path
from training.data.steps import Steps
make, out = Steps.make, Path(sys.argv[1])
def stop(self, name, work):
    if name == sys.argv[2]:
        work(self.scratch / name)
        os.kill(os.getpid(), signal.SIGKILL)  # after all of a step's work, before it counts
    return make(self, name, work)
Steps.make = stop
from training.stages import prepare, tokenise
prepare(out, interactions=Path(sys.argv[3]), items=Path(sys.argv[4]))
tokenise(out, (8, 8, 8))
"""
STEPS = (
    "interactions.parquet",
    "notes.txt",
    "text.f32",
    "pairs.f32",
    "level_1.npz",
    "level_2.npz",
    "level_3.npz",
)


@pytest.mark.parametrize(
    "step",
    [
        "pairs.f32",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("interactions.parquet", "notes.txt", "level_2.npz")
        ),
    ],
)
def test_a_killed_stage_goes_on_to_the_same_files(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, described = many(60, "csv", tmp_path)
    out = tmp_path / "out"
    command = [sys.executable, "-c", ENDED, str(out), step, str(shown), str(described)]
    ended = subprocess.run(command, cwd=ROOT, env=ONE_THREAD, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (out / "catalogue.parquet").exists()
    made, make = [], Steps.make

    def noted(self: Steps, name: str, work: object) -> Path:
        made.extend([] if (self.folder / name).exists() else [name])
        return make(self, name, work)

    monkeypatch.setattr(Steps, "make", noted)
    if STEPS.index(step) < 2:
        prepare(out, interactions=shown, items=described)
    tokenise(out, (8, 8, 8))
    assert made == list(STEPS[STEPS.index(step) :])
    prepare(tmp_path / "whole", interactions=shown, items=described)
    tokenise(tmp_path / "whole", (8, 8, 8))
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_ended_between_its_files_it_moves_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, described = many(60, "csv", tmp_path)
    out, move = tmp_path / "out", os.replace

    def full(source: Path, target: Path) -> None:
        if target == out / "histories.parquet":
            raise OSError("no room")
        move(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "replace", full)
        prepare(out, interactions=shown, items=described)
    assert (out / "items.parquet").exists() and not (out / "histories.parquet").exists()
    notes = prepare(out, interactions=shown, items=described)
    assert notes == prepare(tmp_path / "whole", interactions=shown, items=described)
    for name in ("histories.parquet", "items.parquet"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.long
def test_a_process_killed_anywhere_leaves_what_goes_on(tmp_path: Path) -> None:
    """The same from outside, at moments that nobody chose: `genrec data`, killed again and again."""
    shown, described = many(1000, "csv", tmp_path)
    here: dict[str, Any] = {"cwd": ROOT, "env": ONE_THREAD, "stdout": subprocess.DEVNULL}
    command = [sys.executable, "-m", "genrec", "data", str(tmp_path / "out")]
    command += ["--interactions", str(shown), "--items", str(described)]
    for wait in (1.2, 2.0):
        child = subprocess.Popen(command, **here, stderr=subprocess.DEVNULL)
        time.sleep(wait)
        child.kill()
        child.wait()
    subprocess.run(command, check=True, **here)
    command[4] = str(tmp_path / "whole")
    subprocess.run(command, check=True, **here)
    for name in ("histories.parquet", "items.parquet", "catalogue.parquet", "codebooks.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not list((tmp_path / "out").glob(".*"))


SORTS = """
import resource, sys
from pathlib import Path
from cli.run import run
from training.data import ordering
from training.stages import prepare

folder, memory, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ordering.MEMORY, ordering.usable_cores, ordered = memory, lambda: 1, ordering.Engine.ordered

def on_a_full_disk(engine):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return ordered(engine)

ordering.Engine.ordered = on_a_full_disk
given = {"interactions": folder / "i.parquet", "items": folder / "items.csv"}
sys.exit(run("genrec data", lambda: prepare(folder / "out", **given)))
"""


@pytest.mark.parametrize(
    ("memory", "limit", "said"),
    [
        ("16MB", 10**9, "genrec data: memory: is not enough: Out of Memory Error: "),
        (
            "30MB",
            100_000,
            "genrec data: IO Error: Could not write file .*duckdb_temp_storage.*: File too large",
        ),
    ],
)
def test_what_duckdb_has_no_room_for_is_told_and_what_is_whole_stays(
    tmp_path: Path, memory: str, limit: int, said: str
) -> None:
    """It has errors of its own. A limit on the size of files stands for the full disk."""
    draw, rows = np.random.default_rng(0), 600_000
    columns = {"user": draw.integers(0, rows // 10, rows), "item": draw.integers(0, 100, rows)}
    pq.write_table(pa.table({**columns, "time": draw.integers(0, 10**9, rows)}), tmp_path / "i.parquet")
    (tmp_path / "items.csv").write_text("item,title\n1,one\n")
    command = [sys.executable, "-c", SORTS, str(tmp_path), memory, str(limit)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # what is cut off would be read by others
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.match(said, done.stderr.strip().splitlines()[-1]), done.stderr
    assert (tmp_path / "out" / ".data" / "interactions.parquet").is_file()
