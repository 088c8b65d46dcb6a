"""One tritonserver process and its stubs, as a session of their own: whatever is ended is ended by id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# The one bound on a model's region in /dev/shm that 2.51 leaves: inputs are copied there before any model sees them,
# and a region never shrinks. Room for a batch of 32 with the longest tensors that steps take, twice over.
MOST_REGION_BYTES = 32 << 20
STUB_NAME = "triton_python_b"  # the kernel cuts names at 15 characters
# Runs in the child before exec: when the launcher is killed, the server gets SIGTERM and ends its stubs
# itself. A script, not a preexec_fn, which may deadlock in a process with threads. Python ignores SIGXFSZ, and so does
# what it becomes: a region that would grow too large is an error of the request.
GUARD = f"""
import ctypes, os, resource, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
soft = {MOST_REGION_BYTES} if hard == resource.RLIM_INFINITY else min({MOST_REGION_BYTES}, hard)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Member(NamedTuple):
    """A process of a session, from /proc/<pid>/stat."""

    pid: int
    name: str
    state: str


def start(argv: list[str], environment: dict[str, str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start the server as leader of a new session, its output appended to `log_file`.

    The server is ended when the THREAD that called this ends (that is how PR_SET_PDEATHSIG counts parents).
    """
    command = [sys.executable, "-I", "-S", "-c", GUARD, str(os.getpid()), *argv]
    with log_file.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def members(session: int) -> list[Member]:
    """All processes of a session, zombies too."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it ended while we looked
        fields = tail.split()
        if int(fields[3]) == session:
            found.append(Member(int(entry.name), head.partition("(")[2], fields[0]))
    return found


def living_stubs(session: int) -> list[int]:
    """Pids of the session's stubs that are no zombies."""
    return [m.pid for m in members(session) if m.name == STUB_NAME and m.state not in "ZX"]


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server, then SIGKILL to whatever of its session is left after `grace_s`."""
    if process.poll() is None and grace_s > 0:
        process.send_signal(signal.SIGTERM)
        _wait(lambda: process.poll() is not None, grace_s)
    deadline = time.monotonic() + 10
    while left := [m.pid for m in members(process.pid) if m.state not in "ZX"]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of the server's session do not end")
        time.sleep(0.02)
    process.wait()


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
