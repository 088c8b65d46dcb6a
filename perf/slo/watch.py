"""A look at a running server every half second: memory of processes, /dev/shm, rows of the arena, waits for a core."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy import tritonserver
from deploy.launcher import RunningServer
from genrec import leftovers
from genrec.kv.arena import Arena

SAMPLE_S = 0.5


@dataclass(frozen=True)
class Sample:
    """One look at the server: bytes per process (`tritonserver` and each model), in /dev/shm; arena rows not free; the
    seconds since the last look in which some thread of these processes wanted a core and had none, at most.
    """

    at: float
    memory: dict[str, int]
    shm: int
    busy: int
    starved: float

    @property
    def total(self) -> int:
        """Bytes of all processes."""
        return sum(self.memory.values())


class Watch:
    """A thread that looks at the server every SAMPLE_S."""

    def __init__(self, server: RunningServer, start: float) -> None:
        self.samples: list[Sample] = []
        self._prefix, self._start = server.supervisor.prefix, start
        self._processes = {"tritonserver": server.pid}
        for pid in tritonserver.living_stubs(server.pid):
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            self._processes[Path(command[1]).parent.parent.name] = pid
        self._arena = Arena(leftovers.SHM / f"{self._prefix}arena")
        self._waited = {pid: waits(pid) for pid in self._processes.values()}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_often)

    def look(self) -> Sample:
        """One sample, now."""
        busy = self._arena.slots - 1 - self._arena.usage()["free"]
        memory = {name: private_bytes(pid) for name, pid in self._processes.items()}
        shm = sum(path.stat().st_blocks * 512 for path in leftovers.files_of(self._prefix))
        return Sample(time.monotonic() - self._start, memory, shm, busy, self._starved())

    def _starved(self) -> float:
        before, self._waited = self._waited, {pid: waits(pid) for pid in self._waited}
        return max(
            (
                waited - before[pid].get(thread, waited)
                for pid, threads in self._waited.items() for thread, waited in threads.items()
            ),
            default=0.0,
        )  # fmt: skip

    def _look_often(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.samples.append(self.look())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._arena.close()


def waits(pid: int) -> dict[str, float]:
    """Thread -> seconds in all that it wanted a core and had none; nothing of a process that is gone."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that ended just now
            found[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return found


def private_bytes(pid: int) -> int:
    """Resident bytes without shared memory; 0 of a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return 1024 * sum(int(fields.get(name, "0").split()[0]) for name in ("RssAnon", "RssFile"))
