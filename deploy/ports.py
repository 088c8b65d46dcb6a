"""Loopback ports for one server: given ones are checked, the others are chosen free."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from genrec.errors import InputError

LOOPBACK = "127.0.0.1"
# Below Linux's range for outgoing connections, so that no client socket takes a port between choice and bind.
FIRST, LAST = 20000, 32000
ATTEMPTS = 200


@dataclass(frozen=True)
class Ports:
    """The three ports of a server on this machine, and host:port of each."""

    http: int
    grpc: int
    metrics: int

    @property
    def http_url(self) -> str:
        """Of KServe v2 over HTTP."""
        return f"{LOOPBACK}:{self.http}"

    @property
    def grpc_url(self) -> str:
        """Of KServe v2 over gRPC."""
        return f"{LOOPBACK}:{self.grpc}"

    @property
    def metrics_url(self) -> str:
        """Of the Prometheus metrics (path /metrics)."""
        return f"{LOOPBACK}:{self.metrics}"


def is_free(port: int) -> bool:
    """Whether nobody listens on the loopback port; TIME_WAIT does not count, as for the server itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_ports(http: int | None = None, grpc: int | None = None, metrics: int | None = None) -> Ports:
    """Check the ports given and choose the others. Raises InputError naming the field and the port."""
    given = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    chosen: dict[str, int] = {}
    for field, port in given.items():
        if port is None:
            continue
        if not 1 <= port <= 65535:
            raise InputError(field, f"is {port}", "1 to 65535")
        if port in chosen.values():
            raise InputError(field, f"port {port} is given twice", "three different ports")
        if not is_free(port):
            raise InputError(
                field, f"port {port} is in use on {LOOPBACK}", "a free port, or none to have one chosen"
            )
        chosen[field] = port
    for field in given:
        if field not in chosen:
            chosen[field] = _free_port(set(chosen.values()))
    return Ports(chosen["http_port"], chosen["grpc_port"], chosen["metrics_port"])


def _free_port(taken: set[int]) -> int:
    for _ in range(ATTEMPTS):
        port = random.SystemRandom().randint(FIRST, LAST)
        if port not in taken and is_free(port):
            return port
    raise InputError("ports", f"none found free in {FIRST} to {LAST}", "some free ports")
