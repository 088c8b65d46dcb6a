"""Work on several ranks: started here, and by torchrun."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from genrec.errors import InputError
from genrec.progress import counting
from tests.serving.processes import until
from tests.training.ranks import SLOW_S, impatient
from training.launch import on_ranks
from training.sharded.world import World

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
import sys
from tests.training.test_launch import numbers
from training.launch import on_ranks
try:
    said = f"gave {on_ranks(int(sys.argv[1]), numbers, 5)}"
except Exception as error:
    said = f"raised {error}"
os.write(1, f"{said}\\n".encode())  # at once: ranks share the pipe
"""


def numbers(world: World, first: int) -> list[int]:
    return world.gather(np.array([first + world.rank], np.int64))[:, 0].tolist()


def refuses(world: World) -> None:
    if world.rank == 1:
        raise InputError("ratings", "are not at hand", "ml-100k")
    world.meet()


def breaks(world: World) -> None:
    raise LookupError("no such thing")


def allocates(world: World) -> None:
    torch.empty(2**50)


def writes(world: World) -> None:
    Path("/dev/full").write_text("more than there is room for")


def test_what_a_rank_raises_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"ratings: are not at hand \(accepted: ml-100k\)"):
        on_ranks(2, refuses, threads=2)
    with pytest.raises(Exception, match=r"rank [01] failed: LookupError: no such thing"):
        on_ranks(2, breaks, threads=2)
    capfd.readouterr()
    with pytest.raises(OSError, match="No space left") as full:
        on_ranks(2, writes, threads=2)
    assert full.value.errno == errno.ENOSPC and "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_without_memory_is_told_as_that(ranks: int, capfd: pytest.CaptureFixture[str]) -> None:
    """It raises a RuntimeError, which would be one of ours."""
    with pytest.raises(MemoryError, match="can't allocate memory: you tried to allocate"):
        on_ranks(ranks, allocates, threads=ranks)
    assert "Traceback" not in capfd.readouterr().err


def writes_last(world: World, path: Path) -> None:
    impatient(world).meet()
    if world.rank == 0:
        time.sleep(SLOW_S + 2)
        path.touch()


def test_a_rank_that_writes_at_the_end_is_waited_for(tmp_path: Path) -> None:
    on_ranks(2, writes_last, tmp_path / "model", threads=2)
    assert (tmp_path / "model").exists()


def takes_its_time(world: World) -> list[int]:
    """Rank 1, for rows that all gather."""
    hasty = impatient(world)
    hasty.meet()
    if world.rank == 1:
        time.sleep(SLOW_S + 2)
    return hasty.gather_rows(np.full((world.rank + 1, 1), world.rank))[:, 0].tolist()


@pytest.mark.long
def test_a_rank_whose_share_takes_longer_is_waited_for() -> None:
    assert on_ranks(2, takes_its_time, threads=2) == [0, 1, 1]


def test_alone_it_is_this_process() -> None:
    assert on_ranks(1, numbers, 5) == [5]


def hides(world: World) -> list[bool]:
    with counting("validate", 1, "user") as bar:
        return world.gather(np.array([bar.disable], np.int64))[:, 0].astype(bool).tolist()


@pytest.mark.parametrize("ranks", [1, 2])
def test_rank_0_alone_shows_how_far_it_is(ranks: int) -> None:
    """Of work that is shared out too: all would draw on one line."""
    assert on_ranks(ranks, hides, threads=ranks) == [False, True][:ranks]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (1, "gave [5, 6]"),
        pytest.param(
            3,
            "raised ranks: is 3, in one of the 2 that torchrun started (accepted: 2)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_torchrun_starts_the_ranks(tmp_path: Path, asked: int, said: str) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(tmp_path / "work.py"), str(asked)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    assert done.stdout.splitlines() == [said, said], done.stderr


ENDLESS = """
import os, sys, time
from pathlib import Path
from training.launch import on_ranks
from tests.training.test_launch import endless
if __name__ == "__main__":  # and not in the processes that this starts
    on_ranks(2, endless, Path(sys.argv[1]))
"""


def endless(world: World, folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    while True:
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("starts", "how"),
    [
        pytest.param([], signal.SIGKILL, marks=pytest.mark.long),
        ([], signal.SIGTERM),
        (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], signal.SIGKILL),
    ],
)
def test_ranks_end_with_the_command_that_started_them(
    tmp_path: Path, starts: list[str], how: signal.Signals
) -> None:
    """However it ends: its child is a process that forks them, of which they are children; or they are its own."""
    work, folder = tmp_path / "work.py", tmp_path / "ranks"
    folder.mkdir()
    work.write_text(ENDLESS)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = subprocess.Popen([sys.executable, *starts, str(work), str(folder)], env=environment)
    until(lambda: len(list(folder.iterdir())) == 2)
    command.send_signal(how)
    command.wait()
    ranks = [int(path.name) for path in folder.iterdir()]
    until(lambda: not any(psutil.pid_exists(rank) for rank in ranks))


KILLED = """
import os, signal
if os.getpid() != int(os.environ.setdefault("FIRST", str(os.getpid()))):
    os.kill(os.getpid(), signal.SIGKILL)
def work(world): ...
"""


def test_a_process_that_dies_before_it_has_started_ranks_is_said_so(tmp_path: Path) -> None:
    """It imports torch for all of them, and memory may run out there."""
    (tmp_path / "killed.py").write_text(KILLED)
    script = (
        "from cli.run import run; from killed import work; from training.launch import on_ranks; import sys\n"
    )
    script += "sys.exit(run('genrec train', lambda: on_ranks(2, work)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert done.returncode == 2 and "genrec train: rank 0 of the training could not be started" in done.stderr
