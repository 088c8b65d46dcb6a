"""A benchmark that is ended leaves neither its server nor a temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy import leftovers
from tests.serving.processes import until


def end(what: list[object], temporary: Path, begun: Callable[[psutil.Process], object]) -> None:
    """SIGTERM to a `genrec` of these words once it has begun: none of its processes and files in /dev/shm is left."""
    running = subprocess.Popen(
        [sys.executable, "-m", "genrec", *map(str, what)], stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    family = psutil.Process(running.pid)
    try:
        until(lambda: running.poll() is not None or begun(family))
        children = family.children(recursive=True)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
    finally:
        running.kill()
        running.wait()
    left = psutil.wait_procs(children, 30)[1]
    assert not left and not [*leftovers.SHM.glob(f"genrec-*-{running.pid}-*")]


@pytest.mark.serving
def test_sigterm_ends_a_sweep_with_its_server_and_folders(tiny: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = [tiny, "--slo-p99-ms", "100", "--beam-width", "16", "--out", tmp_path / "out"]
    end(["sweep", *options], temporary, lambda _: [*temporary.glob("genrec-perf-*")])  # perf_analyzer runs
    assert not [*temporary.iterdir()]


@pytest.mark.serving
def test_sigterm_ends_a_benchmark_with_the_server_that_it_started_itself(tmp_path: Path) -> None:
    """Every benchmark says `report.begin` before, as this one: without, it could publish nothing."""
    options = ["--folder", tmp_path, "--model", "32-1", "--tokens", "96", "--flood-tokens", "192"]
    end(["bench", "relay_flood", *options], tmp_path, stubs_run)


def stubs_run(family: psutil.Process) -> bool:
    """Whether its server has begun to load models; processes come and go meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return any("triton_python" in each.name() for each in family.children(recursive=True))
    return False
