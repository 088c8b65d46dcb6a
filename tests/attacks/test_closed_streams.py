"""A command of which a stream was closed (`2>&-`) does its work: of progress and news nobody hears, that is all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKS = """
import os
from cli.run import run, start_log
from genrec.progress import ticking

def work():
    with ticking("working"):
        print(os.open(os.devnull, os.O_RDONLY), file=open(os.environ["SAID"], "w"))

start_log()
raise SystemExit(run("genrec", work))
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_no_work_and_is_no_other_file(tmp_path: Path, closed: str) -> None:
    """What was opened next would have its number, and get what libraries in C write to it."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", WORKS]
    done = subprocess.run(shell, cwd=ROOT, env={"SAID": str(tmp_path / "said")}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert int((tmp_path / "said").read_text()) > 2
