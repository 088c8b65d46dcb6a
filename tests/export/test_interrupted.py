"""Ctrl-C and SIGTERM end an export at once, and leave no process and no word; nor does one that is killed leave any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Who starts the tests in the background has them ignore SIGINT, and children inherit that.
EXPORT = """
import signal, sys
from pathlib import Path
from export import generator
generator.IMPORTED = ()
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    try:
        generator._export_all("waiting", Path(), ["done", "waits"], Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
"""
COMMAND = """
import sys
from pathlib import Path
from cli.main import main
from export import generator
generator.IMPORTED = ()
graphs = ["done", "waits"]
generator.export_artifact = lambda folder: generator._export_all("waiting", Path(), graphs, folder)
if __name__ == "__main__":
    sys.exit(main(["export", sys.argv[1]]))
"""
WAITING = """
import time
from tqdm import tqdm
def export_from(model, name, folder):
    tqdm(disable=True)  # torch makes bars, whose lock is a semaphore
    if name == "done":
        return (folder / name).touch()
    while not (folder / "done").exists():
        time.sleep(0.05)
    time.sleep(0.5)  # the process that wrote it waits for more by then
    print("begun", flush=True)
    time.sleep(600)
"""
SLOWLY = """
import time
print("begun", flush=True)
time.sleep(2)  # as torch takes
"""


@contextmanager
def exporting(folder: Path, script: str = EXPORT) -> Iterator[subprocess.Popen[str]]:
    """An export whose second graph is being written; in a session of its own."""
    (folder / "export_one.py").write_text(script)
    (folder / "waiting.py").write_text(WAITING)
    (folder / "slowly.py").write_text(SLOWLY)
    (folder / "torch.py").write_text("set_num_threads = id\n")  # who waits need not import seconds of it
    paths = os.pathsep.join((str(ROOT), str(folder)))
    command = [sys.executable, str(folder / "export_one.py"), str(folder)]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "interrupt",
    [pytest.param(os.kill, marks=pytest.mark.long), os.killpg],
    ids=["one process", "all of a terminal"],
)
def test_ctrl_c_ends_the_graph_that_is_being_written(
    interrupt: Callable[[int, int], None], tmp_path: Path
) -> None:
    with exporting(tmp_path) as process:
        interrupt(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)  # ends when the last process has closed its stderr
    assert process.returncode == 130 and "Traceback" not in said, said


def test_ctrl_c_while_what_all_need_is_imported(tmp_path: Path) -> None:
    """The process that imports it says nothing of its own."""
    script = EXPORT.replace("IMPORTED = ()", "IMPORTED = ('slowly',)")
    with exporting(tmp_path, script) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even semaphores, of which Python would warn."""
    with exporting(tmp_path, COMMAND) as process:
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + signal.SIGTERM, "")


def test_of_a_killed_export_no_process_is_left(tmp_path: Path) -> None:
    with exporting(tmp_path) as process:
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
