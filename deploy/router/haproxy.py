"""One HAProxy process, and what is told to it while it runs."""

from __future__ import annotations

import csv
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from deploy import probe, tritonserver
from deploy.ports import LOOPBACK, Ports, is_free
from deploy.router.config import BACKENDS, ServerPlace, render
from deploy.router.limits import Limits
from genrec import leftovers
from genrec.errors import ArtifactError, GenrecError

FOLDER = "router"  # of one router in /dev/shm: short enough a name for sockets, and gone with its owner
CONFIG = "haproxy.cfg"
START_S, ANSWER_S, LOOK_S = 10.0, 5.0, 0.05
SETTLED_S = 2.0  # who ends sooner after a start cannot run at all
LOOKS, ALIVE_S = 3, 2.0  # who leaves so many questions in a row unanswered for so long is stopped or hangs
log = logging.getLogger("genrec.serve")


class RouterError(GenrecError):
    """HAProxy refuses its configuration or a command, or has ended."""


@dataclass
class Router:
    """A running HAProxy. Only the thread that started it may outlive it."""

    ports: Ports  # those of the metrics: HAProxy's own
    config: str
    folder: Path
    process: subprocess.Popen[bytes]
    started: float  # on the monotonic clock

    def fill(self, place: str, ports: Ports) -> None:
        """Put a server that answers into an empty place; it gets nobody before it is weighed."""
        for backend, port in zip(BACKENDS, (ports.grpc, ports.http), strict=True):
            server = f"{backend}/{place}"
            self.tell(f"set server {server} addr {LOOPBACK} port {port}")
            self.tell(f"set server {server} check-port {ports.http}")
            self.tell(f"set server {server} weight 0")
            self.tell(f"set server {server} state ready")

    def weigh(self, place: str, weight: int) -> None:
        """Give a place this share of the users, of the sum of all weights; at 0 it gets no new request."""
        for backend in BACKENDS:
            self.tell(f"set server {backend}/{place} weight {weight}")

    def empty(self, place: str) -> None:
        """Take a place out; what is still in flight there goes to another when its server ends."""
        for backend in BACKENDS:
            self.tell(f"set server {backend}/{place} state maint")

    def busy(self, places: Sequence[str]) -> int:
        """Requests that these places work on or that wait for them."""
        rows = csv.DictReader(self.ask("show stat").lstrip("# ").splitlines())
        return sum(
            int(row["scur"]) + int(row["qcur"])
            for row in rows
            if row["pxname"] in BACKENDS and row["svname"] in places
        )

    def tell(self, command: str) -> None:
        """A command that changes something. Raises RouterError with what HAProxy says against it."""
        said = self.ask(command).strip()
        # It confirms a changed address in words, and is silent about the rest.
        if said and not said.startswith(("IP changed", "port changed", "no need to change")):
            raise RouterError(f"haproxy: {command}: {said}")

    def ask(self, command: str, timeout_s: float = ANSWER_S) -> str:
        """What HAProxy answers. Raises RouterError when it is not there."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout_s)
                connection.connect(str(self.folder / "admin"))
                connection.sendall(f"{command}\n".encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError as error:
            raise RouterError(f"haproxy: {command}: no answer: {error}; {self.log()}") from error

    def revive(self) -> bool:
        """Whether it had ended, or hung, and was started again. Its places are then as they were at the first start.

        One whose port another process has taken meanwhile waits for it. Raises RouterError when it ends so soon after a
        start that another would not help.
        """
        if self.process.poll() is None:
            if self._answers():
                return False
            log.warning("haproxy does not answer any more")
            tritonserver.end(self.process, grace_s=0)
        if time.monotonic() < self.started + SETTLED_S:
            raise RouterError(f"haproxy: ended with {self.process.returncode}: {self.log()}")
        log.warning("haproxy ended with %d; it is started again", self.process.returncode)
        self._wait_for_ports()
        # systemd-logind removes it all when its user logs out (RemoveIPC)
        if not (self.folder / CONFIG).exists():
            _lay_out(self.folder, self.config)
        self.process, self.started = _start(self.folder), time.monotonic()
        _wait(self)
        return True

    def _wait_for_ports(self) -> None:
        told = 0
        while taken := next((port for port in astuple(self.ports) if not is_free(port)), 0):
            if taken != told:
                log.warning("haproxy: port %d is in use on %s; it starts when that is free", taken, LOOPBACK)
                told = taken
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        for _ in range(LOOKS):
            with suppress(RouterError):
                self.ask("show info", ALIVE_S)
                return True
        return False

    def log(self) -> str:
        """The end of what it wrote, as far as that is there."""
        with suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-500:]
        return ""


@contextmanager
def running_router(
    places: Sequence[ServerPlace], servers: int, limits: Limits, ports: Ports
) -> Iterator[Router]:
    """HAProxy over these places, for so many servers at a time; ended on leaving.

    Raises ArtifactError without HAProxy, RouterError.
    """
    binary = _binary()
    prefix = leftovers.own_prefix()
    folder = leftovers.SHM / f"{prefix}{FOLDER}"
    config = render(places, servers, limits, ports, folder / "admin")
    try:
        _lay_out(folder, config)
        _check(binary, folder / CONFIG)
        router = Router(ports, config, folder, _start(folder), time.monotonic())
        try:
            _wait(router)
            yield router
        finally:
            tritonserver.end(router.process, grace_s=2)
    finally:
        leftovers.remove(prefix)


def _lay_out(folder: Path, config: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / CONFIG).write_text(config)


def _binary() -> str:
    binary = shutil.which("haproxy")
    if not binary:
        raise ArtifactError("haproxy", "is not on PATH (Debian, Ubuntu: apt-get install haproxy)")
    return binary


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [_binary(), "-db", "-f", str(folder / CONFIG)]
    prefix = folder.name.removesuffix(FOLDER)
    return tritonserver.start(command, dict(os.environ), folder / "log", prefix=prefix)


def _check(binary: str, config: Path) -> None:
    found = subprocess.run([binary, "-c", "-f", config], capture_output=True, text=True, check=False)
    if found.returncode:
        raise RouterError(f"haproxy: refuses its configuration: {found.stderr}")


def _wait(router: Router) -> None:
    """Until it answers over HTTP, with 200 or that no server is ready."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if router.process.poll() is not None:
            raise RouterError(f"haproxy: ended with {router.process.returncode}: {router.log()}")
        try:
            with probe.ask(f"http://{router.ports.metrics_url}/metrics", timeout=1):
                return
        except OSError:
            time.sleep(LOOK_S)
    raise RouterError(f"haproxy: does not answer after {START_S:.0f} s: {router.log()}")
