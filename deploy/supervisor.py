"""The thread that owns a server: starts it, proves it ready, watches it, starts it again, ends it.

Triton 2.51 neither restarts a dead stub nor admits to one (H3), so three things are watched: the server
process, the number of living stubs, and, while no traffic shows progress, the deep probe.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from deploy import leftovers, probe, tritonserver
from deploy.command import EXIT_TIMEOUT_S
from deploy.ports import LOOPBACK, Ports
from genrec.errors import ArtifactError, GenrecError

WATCH_S = 1.0
PROBE_TIMEOUT_S = 10.0
FAILED_PROBES = 3  # in a row: one slow answer is no reason to throw away every request in flight
FAILED_STARTS = 3
# A server that stuck while loading was seen to load at once when started again; so a restart is given a few times
# what the first start took, and twice, three times that when it is tried again.
SLOWER_RESTART = 3.0
LEAST_RESTART_S = 30.0
PORT_TAKEN = "already in use"
# A traceback in the server's log is one line with \\n in it; what comes before them is the message.
LOAD_FAILURE = re.compile(r"\"failed to load '(\w+)' version \d+: (.*?)(?:\\n|\"$)", re.MULTILINE)
log = logging.getLogger("genrec.serve")


class LaunchError(GenrecError):
    """The server did not start, or not again; the message ends with what its log says of it."""

    def __init__(self, problem: str, log_file: Path, log_start: int) -> None:
        text = log_file.read_bytes()[log_start:].decode(errors="replace") if log_file.exists() else ""
        self.port_taken = PORT_TAKEN in text
        told = [f"{model}: {reason}" for model, reason in LOAD_FAILURE.findall(text)]
        told = told or [line for line in text.splitlines() if line.startswith("error:") or PORT_TAKEN in line]
        super().__init__("\n  ".join([f"{problem} (log: {log_file})", *told]))


@dataclass(frozen=True)
class Launch:
    """All it takes to start the same server again; `prepare` makes what the steps share, `ensembles` are probed."""

    argv: list[str]
    environment: dict[str, str]
    prefix: str
    prepare: Callable[[], None]
    ports: Ports
    item: Callable[[], int]  # an item id to probe with, of the catalogue as it is now
    ensembles: tuple[str, ...]
    log_file: Path
    start_timeout_s: float
    probe_every_s: float


class Supervisor:
    """One server's life. Its thread itself starts the process, which ends when its parent thread does."""

    def __init__(self, launch: Launch) -> None:
        self._thread = threading.Thread(target=self._live, name="genrec-supervisor", daemon=True)
        self.restarts = 0
        self.error: Exception | None = None
        self._launch = launch
        self._item = launch.item()
        self._process: Popen[bytes] | None = None
        self._first_start_s = 0.0
        self._stubs = 0
        self._begun = threading.Event()
        # Not Thread.join: a signal that interrupts a join makes Python 3.11 take the thread for ended.
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._on_start: Callable[[], None] = lambda: None
        self._failed_probes: Counter[str] = Counter()
        self._answered: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """Pid of the present server process, 0 when there is none."""
        return self._process.pid if self._process else 0

    @property
    def prefix(self) -> str:
        """What the names of the server's files in /dev/shm begin with."""
        return self._launch.prefix

    def start_and_wait(self, on_start: Callable[[], None]) -> None:
        """Start; return when the first deep probe is answered. `on_start` runs after each good start."""
        self._on_start = on_start
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C while it loads
            self.stop()
            raise
        if self.error:
            self._ended.wait()
            raise self.error

    def wait(self) -> None:
        """Until the supervisor gives up. Raises its error."""
        while not self._ended.wait(0.5):
            pass
        if self.error:
            raise self.error

    def stop(self) -> None:
        """End the server and everything of it; returns when it is gone."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._ended.wait()

    def _live(self) -> None:
        """The thread: start, watch, end."""
        try:
            begun = time.monotonic()
            self._start(self._launch.start_timeout_s)
            self._first_start_s = time.monotonic() - begun
            self._begun.set()
            self._watch()
        except Exception as error:  # handed to whoever waits
            self.error = error
            if self._begun.is_set() and not self._stopping.is_set():
                log.error("%s", error)
        finally:
            try:
                self._end(grace_s=EXIT_TIMEOUT_S + 5)
            finally:
                self._begun.set()
                self._ended.set()

    def _start(self, timeout_s: float) -> None:
        """Arena, process, deep probe. Raises LaunchError."""
        leftovers.remove(self._launch.prefix)
        self._launch.prepare()
        log_file = self._launch.log_file
        log_start = log_file.stat().st_size if log_file.exists() else 0  # after what earlier starts wrote
        self._process = tritonserver.start(self._launch.argv, self._launch.environment, log_file)
        deadline = time.monotonic() + timeout_s
        problem = ""
        while True:
            if self._stopping.is_set():
                raise LaunchError("stopped while starting", log_file, log_start)
            if self._process.poll() is not None:
                problem = f"tritonserver ended with {self._process.returncode} while starting"
                raise LaunchError(problem, log_file, log_start)
            left = deadline - time.monotonic()
            if left <= 0:
                problem = f"not ready after {timeout_s:.0f} s: {problem}"
                raise LaunchError(problem, log_file, log_start)
            self._stopping.wait(0.2)
            url = self._url(self._launch.ports.http)
            if probe.server_id(url, timeout_s=1.0) != self._launch.prefix:
                problem = "it does not answer"
                continue
            # The first answer may wait for compilation: no shorter limit than the start's own.
            item = self._known_item()
            answers = [probe.infer(url, e, item, left) for e in self._launch.ensembles]
            problem = "; ".join(answer.problem for answer in answers if not answer.alive)
            if not problem:
                break
        self._stubs = len(tritonserver.living_stubs(self.pid))
        self._failed_probes.clear()
        self._count_answers()
        self._on_start()

    def _watch(self) -> None:
        next_probe = time.monotonic() + self._launch.probe_every_s
        while not self._stopping.wait(min(WATCH_S, self._launch.probe_every_s)):
            trouble = self._dead()
            if not trouble and time.monotonic() >= next_probe:
                trouble = self._silent()
                next_probe = time.monotonic() + self._launch.probe_every_s
            if trouble:
                log.warning("restarting the server: %s", trouble)
                self._restart()

    def _dead(self) -> str:
        """What has died, if anything."""
        assert self._process is not None
        if self._process.poll() is not None:
            return f"tritonserver ended with {self._process.returncode}"
        stubs = len(tritonserver.living_stubs(self.pid))
        return f"{self._stubs - stubs} of {self._stubs} model processes died" if stubs < self._stubs else ""

    def _silent(self) -> str:
        """Why the server is thought to hang, if it is. Answered traffic is the best probe and free."""
        answering = self._count_answers()
        for ensemble in self._launch.ensembles:
            if ensemble in answering or self._answers_probe(ensemble):
                self._failed_probes[ensemble] = 0
            elif self._failed_probes[ensemble] >= FAILED_PROBES:
                return f"{FAILED_PROBES} probes failed"
        return ""

    def _answers_probe(self, ensemble: str) -> bool:
        answer = probe.infer(
            self._url(self._launch.ports.http), ensemble, self._known_item(), PROBE_TIMEOUT_S
        )
        # A server that is slow but answers others is under load, not dead: restarting it would lose their
        # work.
        if ensemble in self._count_answers() or answer.alive:
            return True
        self._failed_probes[ensemble] += 1
        log.warning(
            "%s: probe %d of %d failed: %s",
            ensemble, self._failed_probes[ensemble], FAILED_PROBES, answer.problem,
        )  # fmt: skip
        return False

    def _known_item(self) -> int:
        """What to probe with. While the catalogue's file cannot be read, the server goes on, and so does this."""
        try:
            self._item = self._launch.item()
        except ArtifactError as error:
            log.warning("%s", error)
        return self._item

    def _count_answers(self) -> set[str]:
        """The ensembles that have answered anyone since the last count that could be read."""
        now = probe.answered(self._url(self._launch.ports.metrics), PROBE_TIMEOUT_S)
        if now is None:
            return set()
        before, self._answered = self._answered, now
        return {e for e in self._launch.ensembles if e in before and now.get(e, 0) > before[e]}

    def _restart(self) -> None:
        """On the same ports. No grace: with a dead stub Triton waits its whole exit timeout for nothing."""
        patience_s = max(LEAST_RESTART_S, SLOWER_RESTART * self._first_start_s)
        for attempt in range(1, FAILED_STARTS + 1):
            self._end(grace_s=0)
            try:
                self._start(min(attempt * patience_s, self._launch.start_timeout_s))
            except LaunchError as error:
                if attempt == FAILED_STARTS or self._stopping.is_set():
                    raise
                log.warning("start %d of %d failed: %s", attempt, FAILED_STARTS, error)
                self._stopping.wait(attempt)
            else:
                self.restarts += 1
                log.warning("the server answers again (pid %d)", self.pid)
                return

    def _end(self, grace_s: float) -> None:
        if self._process:
            tritonserver.end(self._process, grace_s)
            self._process = None
        leftovers.remove(self._launch.prefix)

    @staticmethod
    def _url(port: int) -> str:
        return f"{LOOPBACK}:{port}"
