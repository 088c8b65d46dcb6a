"""A look at a running server every half second: memory of each process, /dev/shm, rows of the arena."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deploy import leftovers, tritonserver
from deploy.launcher import RunningServer
from genrec.kv.arena import Arena

SAMPLE_S = 0.5


@dataclass(frozen=True)
class Sample:
    """One look at the server: bytes per process (`tritonserver` and each model), in /dev/shm; arena rows not free."""

    at: float
    memory: dict[str, int]
    shm: int
    busy: int

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
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_often)

    def look(self) -> Sample:
        """One sample, now."""
        busy = self._arena.slots - 1 - self._arena.usage()["free"]
        memory = {name: private_bytes(pid) for name, pid in self._processes.items()}
        shm = sum(path.stat().st_blocks * 512 for path in leftovers.files_of(self._prefix))
        return Sample(time.monotonic() - self._start, memory, shm, busy)

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


def private_bytes(pid: int) -> int:
    """Resident bytes without shared memory. Raises OSError when the process is gone."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * (int(fields["RssAnon"].split()[0]) + int(fields["RssFile"].split()[0]))
