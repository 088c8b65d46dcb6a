"""What runs in a server's process before the server does, and beside it until it has ended (`deploy.tritonserver`).

    python -I -S deploy/guard.py LAUNCHER MOST_FILES MOST_BYTES PREFIX PLACE HIDDEN PROGRAM [ARGUMENT ...]

A program, not a preexec_fn, which may deadlock in a process with threads. It starts fast and anywhere: it imports
nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG, PTRACE_TRACEME = 1, 0


def main(launcher: int, files: int, size: int, prefix: str, place: str, hidden: str, argv: list[str]) -> None:
    """Become the server of a launcher, `argv`, unless that has ended; leave a child that cleans up behind both.

    It may have so many `files` open, each of at most `size` bytes. The rest is as `deploy.hidden` and
    `genrec.leftovers` have it.
    """
    libc = ctypes.CDLL(None)
    # When the launcher is killed, the server gets SIGTERM and ends its stubs itself
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.umask(0o077)  # Triton makes its shared memory by it, in which prompts pass
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, at_most(files, hard)), hard))
    # Python ignores SIGXFSZ, and so does what it becomes: a region that would grow too large is an error of the request
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_most(size, hard), hard))
    if os.getppid() != launcher:
        return
    server = os.getpid()
    if not os.fork():
        clean_up(server, prefix)
        os._exit(0)
    # Where it may not be traced, hidden arguments go where they were meant to be
    if libc.ptrace(PTRACE_TRACEME, 0, 0, 0):
        argv = [os.environ[hidden + each[len(place) :]] if each.startswith(place) else each for each in argv]
    os.execv(argv[0], argv)


def at_most(wanted: int, hard: int) -> int:
    """A limit as wanted, or as high as it may be."""
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def clean_up(server: int, prefix: str) -> None:
    """Wait for the server's end, and end what it leaves.

    Stubs that were just starting were seen to wait for ever for a server that had ended, before any code of ours was in
    them. Where its launcher has ended too, their files in /dev/shm go: users' KV is among them.
    """
    while os.getppid() == server:
        time.sleep(0.5)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if pid != os.getpid() and os.getsid(pid) == server:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it has ended, or is not ours to look at
            pass
    if prefix and not lives(*prefix.split("-")[2:4]):
        remove_files(prefix)


def lives(pid: str, started: str) -> bool:
    """Whether the process that started then still runs (as `genrec.process.lives`)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state, *fields = stat.read().rpartition(")")[2].split()
        return state not in "ZX" and fields[18] == started
    except OSError:
        return False


def remove_files(prefix: str) -> None:
    """Remove all of /dev/shm that begins with `prefix` and is this user's."""
    import glob  # only now: a start does not wait for them
    import shutil

    for path in glob.glob(f"/dev/shm/{prefix}*"):
        try:
            if os.lstat(path).st_uid == os.geteuid():
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        except OSError:  # another removes it too
            pass


if __name__ == "__main__":
    launcher, files, size, prefix, place, hidden, *argv = sys.argv[1:]
    main(int(launcher), int(files), int(size), prefix, place, hidden, argv)
