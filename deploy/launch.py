"""What it takes to start a server, the same again each time, and why a start failed."""

from __future__ import annotations

import errno
import logging
import re
import signal
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.ports import Ports
from deploy.private import PrivateFolder
from genrec import leftovers
from genrec.errors import GenrecError, InputError

PORT_TAKEN = "already in use"
# Behind how long a first start took
MORE_TIME = " (--start-timeout-s of `genrec serve` and `genrec route` allows more)"
# A traceback in the server's log is one line with \\n in it; what comes before them is the message.
LOAD_FAILURE = re.compile(r"\"failed to load '(\w+)' version \d+: (.*?)(?:\\n\\nAt:|\"$)", re.MULTILINE)
# Triton says both of each model. Until all are loaded it answers nobody, so its index cannot be asked.
BEGUN, LOADED = re.compile(r'"loading: (\w+):\d+"'), re.compile(r"\"successfully loaded '(\w+)'\"")
# The last one ends Triton itself now and then while its processes start; it starts well the next time.
PASSING = (
    PORT_TAKEN, "No space left on device", "Cannot allocate memory", "Too many open files",
    "boost::interprocess::lock_exception",
)  # fmt: skip
PASSING_ERRORS = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)


log = logging.getLogger("genrec.serve")


class ServerLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # in Python 3.10 it takes none
    """What is told of one server: behind a router are several, so each line begins with where its server listens."""

    def __init__(self, http_url: str) -> None:
        super().__init__(log)
        self._server = http_url

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """See `logging.LoggerAdapter`."""
        return f"{self._server}: {msg}", kwargs


class NoRoom(InputError):
    """/dev/shm cannot take what the server shares, now."""


class LaunchError(GenrecError):
    """The server did not start, or not again; the message ends with what its log says of it.

    `passing` says that the cause may go by itself: a port that another process has, a full /dev/shm. `crashed`: a fault
    of its own ended the server, as one does now and then while Triton's processes start.
    """

    def __init__(self, problem: str, log_file: Path, log_start: int, ended: int | None = None) -> None:
        text = _said(log_file, log_start)
        self.passing = any(sign in text for sign in PASSING)
        self.crashed = ended in CRASHES
        told = [f"{model}: {reason}".replace("\\n", " ") for model, reason in LOAD_FAILURE.findall(text)]
        told = told or [line for line in text.splitlines() if line.startswith("error:") or PORT_TAKEN in line]
        super().__init__("\n  ".join([f"{problem} (log: {log_file})", *told]))


class Stopped(LaunchError):
    """Nobody wants the server any more."""


def still_loading(log_file: Path, log_start: int) -> list[str]:
    """Models that a server's log says are neither loaded nor have failed to."""
    text = _said(log_file, log_start)
    over = {*LOADED.findall(text), *(model for model, _ in LOAD_FAILURE.findall(text))}
    return sorted({*BEGUN.findall(text)} - over)


def ended_early(status: int, log_file: Path, log_start: int) -> LaunchError:
    """Of a server whose process ended with that before it was ready."""
    return LaunchError(f"tritonserver ended with {status} while starting", log_file, log_start, status)


def passes(error: Exception) -> bool:
    """Whether what ended a start may go by itself."""
    if isinstance(error, OSError):
        return error.errno in PASSING_ERRORS
    return isinstance(error, NoRoom) or (isinstance(error, LaunchError) and error.passing)


def too_late(problem: str, after: str, log_file: Path, log_start: int) -> LaunchError:
    """Of a server that was not ready `after` so long: what is missing, and what its log says it still does."""
    loading = still_loading(log_file, log_start)
    problem += f"; still loading: {', '.join(loading)}" if loading else ""
    return LaunchError(f"not ready after {after}: {problem}", log_file, log_start)


def _said(log_file: Path, log_start: int) -> str:
    return log_file.read_bytes()[log_start:].decode(errors="replace") if log_file.exists() else ""


@dataclass(frozen=True)
class Launch:
    """All it takes to start the same server again; `prepare` makes what the steps share, `ensembles` are probed."""

    argv: Callable[[], list[str]]  # of the files as they are now
    environment: dict[str, str]
    prefix: str
    secrets: tuple[str, ...]  # to hide in argv
    control_headers: dict[str, str]  # over HTTP, to load a model again
    verify: Callable[[], None]  # that the artifact's files are as they were made
    unchanged: Callable[[], bool]  # whether that is as it was at the last start; raises ArtifactError
    prepare: Callable[[], None]
    ports: Ports
    item: Callable[[], int]  # an item id to probe with, of the catalogue as it is now
    ensembles: tuple[str, ...]
    models: dict[str, frozenset[str]]  # of each ensemble
    log_file: Path
    start_timeout_s: float
    probe_every_s: float

    @property
    def private(self) -> PrivateFolder:
        """The server's folder of plain names."""
        return PrivateFolder.of(self.prefix)

    @property
    def swap(self) -> Path:
        """The folder in which its processes agree on a catalogue version."""
        return leftovers.SHM / f"{self.prefix}{leftovers.SWAP}"
