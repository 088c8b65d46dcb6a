"""One tritonserver process and its stubs, as a session of their own: whatever is ended is ended by id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from deploy import hidden
from deploy.command import TRACE_DELAY_MS
from genrec.files import private
from genrec.process import GONE, stat_of

# The one bound on a model's region in /dev/shm that 2.51 leaves: inputs are copied there before any model sees them,
# and a region never shrinks. Room for a batch of 32 with the longest tensors that steps take, twice over.
MOST_REGION_BYTES = 32 << 20
STUB_NAME = "triton_python_b"  # the kernel cuts names at 15 characters
KILLED_S = 10.0  # for a process to end that got SIGKILL
# For a server whose models have ended to send its last traces: it looks only once a second whether it may end itself
LAST_S = 1.5e-3 * TRACE_DELAY_MS
MOST_FILES = 65536  # descriptors: a connection takes one, and Triton logs without end when it has none left
GUARD = Path(__file__).resolve().with_name("guard.py")  # a program: it runs in the child before exec


class Member(NamedTuple):
    """A process of a session, from /proc/<pid>/stat."""

    pid: int
    name: str
    state: str


def start(
    argv: list[str],
    environment: dict[str, str],
    log_file: Path,
    secrets: tuple[str, ...] = (),
    prefix: str = "",
) -> subprocess.Popen[bytes]:
    """Start the server as leader of a new session, its output appended to `log_file`, arguments with secrets hidden.

    The server is ended when the THREAD that called this ends (that is how PR_SET_PDEATHSIG counts parents). Files of
    `prefix` (`leftovers`) go with the last of the server and of the process that called this.
    """
    shown, meant = hidden.split(argv, secrets)
    guard = [str(os.getpid()), str(MOST_FILES), str(MOST_REGION_BYTES), prefix, hidden.PLACE, hidden.HIDDEN]
    with open(log_file, "ab", opener=private) as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, *guard, *shown],
            env=environment | meant,
            cwd=_folder(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        hidden.fill_in(process.pid)
    except BaseException:
        end(process, grace_s=0)
        raise
    return process


def _folder() -> str | None:
    """Where a server runs: where we do, or at the root, when that was removed: OpenVINO wants to know where it is."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return os.sep
    return None


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does: R, S, D, T stopped, t traced, Z ended.

    "" when it is gone, "?" where that cannot be read.
    """
    try:
        return stat_of(pid)[1][0]
    except GONE:
        return ""
    except OSError:
        return "?"


def members(session: int) -> list[Member]:
    """All processes of a session, zombies too."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            name, fields = stat_of(pid)
        except OSError:
            continue  # it ended while we looked
        if int(fields[3]) == session:
            found.append(Member(pid, name, fields[0]))
    return found


def living_stubs(session: int) -> list[int]:
    """Pids of the session's stubs that are no zombies."""
    return [m.pid for m in members(session) if m.name == STUB_NAME and m.state not in "ZX"]


def computed_s(pid: int) -> float:
    """Seconds of CPU time that a process has used; 0 when it is gone."""
    try:
        fields = stat_of(pid)[1]
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime


def model_of(stub: int) -> str:
    """Which model a stub runs: the first argument of a stub is its model's file. "" when it has ended."""
    try:
        arguments = Path(f"/proc/{stub}/cmdline").read_bytes().split(b"\0")
        return Path(os.fsdecode(arguments[1])).parent.parent.name
    except (OSError, IndexError):
        return ""


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server, then SIGKILL to whatever of its session is left after `grace_s`.

    Models end when all their requests are answered; a server without any has nothing left to do.
    Raises TimeoutError when some do not end by that either.
    """
    if process.poll() is None and grace_s > 0:
        had = living_stubs(process.pid)
        process.send_signal(signal.SIGTERM)
        _wait(lambda: process.poll() is not None or (bool(had) and not living_stubs(process.pid)), grace_s)
        _wait(lambda: process.poll() is not None, LAST_S)
    deadline = time.monotonic() + KILLED_S
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
    # Who is the first process of a container is given what the server leaves, and nobody else reaps it.
    for left_over in members(process.pid):
        with suppress(ChildProcessError):
            os.waitpid(left_over.pid, os.WNOHANG)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
