"""Ctrl-C ends an export at once, with one process that says nothing but that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Who starts the tests in the background has them ignore SIGINT, and children inherit that.
EXPORT = """
import signal, sys
from pathlib import Path
from export.generator import _export_all
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    try:
        _export_all("waiting", Path(), ["done", "waits"], Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
"""
WAITING = """
import time
def export_from(model, name, folder):
    if name == "done":
        return (folder / name).touch()
    while not (folder / "done").exists():
        time.sleep(0.05)
    time.sleep(0.5)  # the process that wrote it waits for more by then
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("interrupt", [os.kill, os.killpg], ids=["one process", "all of a terminal"])
def test_ctrl_c_ends_the_graph_that_is_being_written(
    interrupt: Callable[[int, int], None], tmp_path: Path
) -> None:
    (tmp_path / "export_one.py").write_text(EXPORT)
    (tmp_path / "waiting.py").write_text(WAITING)
    paths = os.pathsep.join((str(ROOT), str(tmp_path)))
    command = [sys.executable, str(tmp_path / "export_one.py"), str(tmp_path)]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            interrupt(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=60)  # ends when the last process has closed its stderr
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130 and "Traceback" not in said, said
