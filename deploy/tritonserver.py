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

from deploy import hidden
from genrec.process import GONE, stat_of

# The one bound on a model's region in /dev/shm that 2.51 leaves: inputs are copied there before any model sees them,
# and a region never shrinks. Room for a batch of 32 with the longest tensors that steps take, twice over.
MOST_REGION_BYTES = 32 << 20
STUB_NAME = "triton_python_b"  # the kernel cuts names at 15 characters
KILLED_S = 10.0  # for a process to end that got SIGKILL
MOST_FILES = 65536  # descriptors: a connection takes one, and Triton logs without end when it has none left
# Runs in the child before exec: when the launcher is killed, the server gets SIGTERM and ends its stubs
# itself. A script, not a preexec_fn, which may deadlock in a process with threads. Where it may not be traced, it puts
# the hidden arguments where they were meant to be. Python ignores SIGXFSZ, and so does what it becomes: a region that
# would grow too large is an error of the request. A child stays behind and ends what the server leaves: stubs that were
# just starting were seen to wait for ever for a server that had ended, before any code of ours was in them. Where its
# launcher has ended too, it removes their files in /dev/shm: users' KV is among them.
GUARD = """
import ctypes, os, resource, signal, sys, time
parent, most_files, most_bytes, prefix, place, hidden, *argv = sys.argv[1:]
libc = ctypes.CDLL(None)
libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
os.umask(0o077)  # Triton makes its shared memory by it, in which prompts pass
def limit(kind, wanted):
    most = resource.getrlimit(kind)[1]
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most), most
least = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
files, most = limit(resource.RLIMIT_NOFILE, int(most_files))
resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, files), most))
resource.setrlimit(resource.RLIMIT_FSIZE, limit(resource.RLIMIT_FSIZE, int(most_bytes)))
def end_what_is_left(session):
    while os.getppid() == session:
        time.sleep(0.5)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if pid != os.getpid() and os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it has ended, or is not ours to look at
            pass
def launcher_lives(pid, started):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state, *fields = stat.read().rpartition(")")[2].split()
        return state not in "ZX" and fields[18] == started
    except OSError:
        return False
def remove_files():
    import glob, shutil
    for path in glob.glob(f"/dev/shm/{prefix}*"):
        try:
            if os.lstat(path).st_uid == os.geteuid():
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        except OSError:  # another removes it too
            pass
if os.getppid() == int(parent):
    server = os.getpid()
    if not os.fork():
        end_what_is_left(server)
        if prefix and not launcher_lives(*prefix.split("-")[2:4]):
            remove_files()
        os._exit(0)
    if libc.ptrace(0, 0, 0, 0):  # PTRACE_TRACEME
        argv = [os.environ[hidden + a[len(place):]] if a.startswith(place) else a for a in argv]
    os.execv(argv[0], argv)
"""


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
    with open(log_file, "ab", opener=_private) as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, *guard, *shown],
            env=environment | meant,
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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


def model_of(stub: int) -> str:
    """Which model a stub runs: the first argument of a stub is its model's file. "" when it has ended."""
    try:
        arguments = Path(f"/proc/{stub}/cmdline").read_bytes().split(b"\0")
        return Path(os.fsdecode(arguments[1])).parent.parent.name
    except (OSError, IndexError):
        return ""


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server, then SIGKILL to whatever of its session is left after `grace_s`.

    Raises TimeoutError when some do not end by that either.
    """
    if process.poll() is None and grace_s > 0:
        process.send_signal(signal.SIGTERM)
        _wait(lambda: process.poll() is not None, grace_s)
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


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
