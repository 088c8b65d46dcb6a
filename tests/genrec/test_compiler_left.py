"""A compiler outlives the command that was killed under it: who compiles the same next waits for it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.processes import until

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo 1; exit; fi
touch {folder}/begun
while [ ! -e {folder}/go ]; do sleep 0.05; done
exec {real} "$@"
"""
COMMAND = """
import ctypes, sys
from pathlib import Path
from genrec.compiled import compiled
source = Path(sys.argv[1])
ctypes.CDLL(str(compiled("one", [source], ["-shared", "-fPIC", str(source)])))
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="compiles")
def test_who_compiles_the_same_waits_for_a_compiler_whose_command_was_killed(tmp_path: Path) -> None:
    """Both would write one file, and half of it could be taken for the whole, for good."""
    (tmp_path / "g++").write_text(COMPILER.format(folder=tmp_path, real=shutil.which("g++")))
    (tmp_path / "g++").chmod(0o755)
    (tmp_path / "one.cpp").write_text('extern "C" int one() { return 1; }')
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "one.cpp")]
    killed = subprocess.Popen(command, env=os.environ | paths)
    until(lambda: (tmp_path / "begun").exists())
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    (lock,) = (tmp_path / "genrec-triton").glob("*.lock")
    try:
        with lock.open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        (tmp_path / "go").touch()
    subprocess.run(command, env=os.environ | paths, check=True)
    assert not list((tmp_path / "genrec-triton").glob("*.partial"))
