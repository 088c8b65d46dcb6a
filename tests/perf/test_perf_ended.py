"""A benchmark that is ended leaves neither its server nor a temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy import leftovers
from tests.serving.processes import until


@pytest.mark.serving
def test_sigterm_ends_a_sweep_with_its_server_and_folders(tiny: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "genrec", "sweep", tiny, "--slo-p99-ms", "100", "--beam-width", "16"]
    sweep = subprocess.Popen(
        [*command, "--out", tmp_path / "out"], stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        until(lambda: [*temporary.glob("genrec-perf-*")] or sweep.poll() is not None)  # perf_analyzer runs
        family = psutil.Process(sweep.pid).children(recursive=True)
        sweep.send_signal(signal.SIGTERM)
        assert sweep.wait(60) == 128 + signal.SIGTERM
    finally:
        sweep.kill()
        sweep.wait()
    assert not psutil.wait_procs(family, 30)[1]
    assert not [*temporary.iterdir()]
    assert not [*leftovers.SHM.glob(f"genrec-*-{sweep.pid}-*")]
