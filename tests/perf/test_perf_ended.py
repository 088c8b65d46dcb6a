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

from genrec import leftovers
from perf.kit.hosts import why_none
from perf.kit.store_master import MASTER, master_command
from tests.nodes.test_mooncake import why_not
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
@pytest.mark.long
def test_sigterm_ends_a_sweep_with_its_server_and_folders(tiny: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = [tiny, "--slo-p99-ms", "100", "--beam-width", "16", "--out", tmp_path / "out"]
    end(["sweep", *options], temporary, lambda _: [*temporary.glob("genrec-perf-*")])  # perf_analyzer runs
    assert not [*temporary.iterdir()]


@pytest.mark.serving
@pytest.mark.long
def test_sigterm_ends_a_benchmark_with_the_server_that_it_started_itself(tmp_path: Path) -> None:
    """Every benchmark says `report.begin` before, as this one: without, it could publish nothing."""
    options = ["--folder", tmp_path, "--model", "32-1", "--tokens", "96", "--flood-tokens", "192"]
    end(["bench", "relay_flood", *options], tmp_path, stubs_run)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_sigterm_ends_a_benchmark_with_the_master_of_its_nodes_store(
    tiny_ranker: Path, tmp_path: Path
) -> None:
    """The process that started the master is killed."""
    end(["bench", "relay_fetch", tiny_ranker, "--lengths", "9", "--repeats", "9999"], tmp_path, fetching)


@pytest.mark.skipif(bool(why_not() or why_none()), reason=why_not() or why_none())
def test_sigterm_ends_a_benchmark_with_the_master_on_a_host_of_its_own(tmp_path: Path) -> None:
    small = ["--scale", "4000", "--requests", "9999", "--nodes", "2", "--model", "384-1", "--gbit-s", "5"]
    end(["bench", "placement_links", *small, "--artifact", tmp_path / "mock"], tmp_path, fetching)


def test_a_store_s_master_ends_with_who_started_it(tmp_path: Path) -> None:
    """However that ends. Another program has its name: here it is not installed everywhere."""
    stopped = tmp_path / MASTER
    stopped.write_text("#!/bin/sh\nkill -STOP $$\n")
    stopped.chmod(0o755)
    code = f"import subprocess; subprocess.Popen({master_command('127.0.0.1')}, stdout=-3).wait()"
    path = f"{tmp_path}:{os.environ['PATH']}"
    starting = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PATH": path})
    family = psutil.Process(starting.pid)
    until(lambda: named(family, MASTER))
    master = named(family, MASTER)
    starting.kill()
    starting.wait()
    assert not psutil.wait_procs(master, 30)[1]


def fetching(family: psutil.Process) -> bool:
    """Whether a store's master runs beside its nodes, both of which are there."""
    with suppress(psutil.NoSuchProcess):
        both = [each for each in family.children(recursive=True) if "python" in each.name()]
        return bool(named(family, MASTER)) and len(both) > 2
    return False


def named(family: psutil.Process, name: str) -> list[psutil.Process]:
    """Of its descendants."""
    return [each for each in family.children(recursive=True) if each.name() == name]


def stubs_run(family: psutil.Process) -> bool:
    """Whether its server has begun to load models; processes come and go meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return any("triton_python" in each.name() for each in family.children(recursive=True))
    return False
