"""Connections that do nothing shut no door of the router for those who ask."""

from __future__ import annotations

import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import grpc
import pytest

from deploy.ports import LOOPBACK, choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import MOST_CONNECTIONS, Limits

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
FILES = MOST_CONNECTIONS + 1000  # that this process opens at most
# Refused, as of wrong paths, and the connections are kept. In HTTP/2: SETTINGS, and HEADERS of GET / in one stream.
ASKED = {
    "http": b"GET /v2/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    + b"\0\0\6\1\5\0\0\0\1\x82\x86\x84\x41\x01x",
}
WAIT_S = 20  # less than what is idle is kept


@pytest.fixture
def files() -> Iterator[None]:
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES:
        pytest.skip(f"a process may open {most} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, FILES), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


def answer(router: Router, door: str) -> bytes:
    """How it begins, asked on a new connection."""
    with socket.create_connection((LOOPBACK, getattr(router.ports, door)), WAIT_S) as asking:
        asking.sendall(ASKED["http"])
        return asking.recv(12)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("door", ["http", "grpc"])
def test_connections_that_are_kept_shut_no_other_door(door: str) -> None:
    """Nor their own, over HTTP."""
    with running_router([ServerPlace("a1")], 1, Limits(), choose_ports()) as router, ExitStack() as stack:
        with suppress(TimeoutError):  # where the door is shut and so many wait before it
            for _ in range(MOST_CONNECTIONS):
                address = LOOPBACK, getattr(router.ports, door)
                stack.enter_context(socket.create_connection(address, 2)).sendall(ASKED[door])
        assert answer(router, "http") == b"HTTP/1.1 404"
        assert answer(router, "metrics") == b"HTTP/1.1 404"
        if door == "http":
            with grpc.insecure_channel(router.ports.grpc_url) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                with pytest.raises(grpc.RpcError, match="no server is ready"):  # which is an answer
                    call(b"", timeout=WAIT_S)
