"""Bodies that would be of any size to a server do not pass the router."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest

from deploy.ports import LOOPBACK, choose_ports
from deploy.router import config
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from tests.deploy.test_hung_server import ready_server, ups
from tests.serving.processes import until

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
INFER = b" /v2/models/recommend/infer HTTP/1.1\r\nhost: x\r\n"
MOST_BYTES = 1 << 20  # the limit of these tests


@pytest.fixture(scope="module")
def received() -> list[int]:
    """How long the messages are that came over gRPC."""
    return []


@pytest.fixture(scope="module")
def grpc_port(received: list[int]) -> Iterator[int]:
    """Of one that takes whatever comes."""

    class Taker(grpc.GenericRpcHandler):
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                lambda message, _: bytes(received.append(len(message)) or 0)
            )

    server = grpc.server(ThreadPoolExecutor(4), [Taker()], options=[("grpc.max_receive_message_length", -1)])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    yield port
    server.stop(0).wait()


@pytest.fixture(scope="module")
def router(grpc_port: int) -> Iterator[Router]:
    with pytest.MonkeyPatch.context() as patch, ready_server("a1", lambda: "a1") as place:
        patch.setattr(config, "MOST_BYTES", MOST_BYTES)
        places = [ServerPlace("a1", place.http, grpc_port, 100)]
        with running_router(places, 1, Limits(), choose_ports()) as running:
            until(lambda: ups(running, 1))
            yield running


def said(router: Router, request: bytes) -> bytes:
    """The first line of what the router answers on the port of HTTP."""
    with closing(socket.create_connection((LOOPBACK, router.ports.http), 60)) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as lines:
            return lines.readline().strip()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_a_body_says_its_size_whatever_the_method(router: Router, method: str) -> None:
    chunk = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert said(router, method.encode() + INFER + chunk) == b"HTTP/1.1 411 Length Required"


def test_http_2_has_a_port_of_its_own(router: Router) -> None:
    """A request of it may have a body without a header that says so."""
    assert said(router, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0").startswith(b"HTTP/1.1 400 ")


def test_a_body_is_not_compressed(router: Router) -> None:
    for header, status in ((b"", b"200"), (b"content-encoding: gzip\r\n", b"415")):
        line = said(router, b"POST" + INFER + header + b"content-length: 2\r\n\r\n{}")
        assert line.split()[1] == status


def ask(router: Router, message: bytes, **options: object) -> grpc.StatusCode:
    """What a call over gRPC ends with."""
    with grpc.insecure_channel(router.ports.grpc_url) as channel:
        try:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(message, timeout=60, **options)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_messages_of_grpc_have_a_limit(router: Router, received: list[int]) -> None:
    for length in (0, 1, 40_000, MOST_BYTES):
        received.clear()
        assert ask(router, bytes(length)) == grpc.StatusCode.OK and received == [length]
    received.clear()
    assert ask(router, bytes(MOST_BYTES + 1)) != grpc.StatusCode.OK
    assert not received


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_messages_of_grpc_are_not_compressed(
    router: Router, received: list[int], how: grpc.Compression
) -> None:
    received.clear()
    assert ask(router, bytes(MOST_BYTES + 1), compression=how) == grpc.StatusCode.UNIMPLEMENTED
    for length in range(
        28_000, 33_000, 500
    ):  # heads that leave little room or none to see the message's begin
        metadata = (("x-long", "x" * length),)
        assert ask(router, bytes(MOST_BYTES + 1), compression=how, metadata=metadata) != grpc.StatusCode.OK
    assert not received
