"""Peak memory of the processes of a session: a peer's as the kernel keeps it, our server's by looking."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

from deploy import tritonserver
from genrec import leftovers

LOOK_S = 0.05


def signal_all(session: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session."""
    for member in tritonserver.members(session):
        try:
            os.kill(member.pid, number)
        except ProcessLookupError:
            continue


def forget_peaks(session: int) -> None:
    """The kernel's peaks start again at what is resident now."""
    for member in tritonserver.members(session):
        try:
            Path(f"/proc/{member.pid}/clear_refs").write_text("5")
        except OSError:
            continue  # it ended, or is a zombie


def resident(session: int, field: str = "VmRSS") -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (peak), summed over the processes of a session."""
    return sum(1024 * _kilobytes(member.pid, "status", (field,)) for member in tritonserver.members(session))


def shared_files(session: int) -> set[Path]:
    """Files in /dev/shm that processes of a session map. Who is killed leaves them behind."""
    found = set()
    for member in tritonserver.members(session):
        try:
            lines = Path(f"/proc/{member.pid}/maps").read_text().splitlines()
        except OSError:
            continue  # it has just ended
        found |= {Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line}
    return found


def server_bytes(session: int, prefix: str) -> int:
    """Bytes of a server: its processes' own pages, mapped files once, and its files in /dev/shm once.

    Of a mapped file counts what the process holds that holds most of it, whoever else on the machine maps it: a second
    server beside this one must not halve its libraries.
    """
    own, files = 0, Counter[str]()
    for member in tritonserver.members(session):
        own += 1024 * _kilobytes(member.pid, "smaps_rollup", ("Pss_Anon",))
        files |= _mapped(member.pid)  # the larger of both, file by file
    return own + files.total() + sum(path.stat().st_blocks * 512 for path in leftovers.files_of(prefix))


def _mapped(pid: int) -> Counter[str]:
    """Resident bytes of every file that a process maps, without those that it has written to, which are its own."""
    found, path = Counter[str](), ""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return found  # it has just ended
    for line in lines:
        word, *rest = line.split(maxsplit=5)
        if not word.endswith(":"):
            path = rest[4] if len(rest) == 5 and rest[4].startswith("/") else ""
        elif path and not path.startswith("/dev/shm/") and word in ("Rss:", "Anonymous:"):
            found[path] += (1024 if word == "Rss:" else -1024) * int(rest[0])
    return found


def _kilobytes(pid: int, file: str, fields: tuple[str, ...]) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in fields)


class Peak:
    """The largest `server_bytes` while inside; looking takes time, so nothing is timed meanwhile."""

    def __init__(self, session: int, prefix: str) -> None:
        self.bytes = 0
        self._of, self._stop = (session, prefix), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while True:
            self.bytes = max(self.bytes, server_bytes(*self._of))
            if self._stop.wait(LOOK_S):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
