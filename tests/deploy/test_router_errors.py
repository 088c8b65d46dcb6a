"""What the router itself says of a request is in the protocol's own form, as a server's errors are."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest

from clients.errors import Unreachable
from clients.recommender import Recommender
from deploy.ports import LOOPBACK, choose_ports
from deploy.router import config
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from tests.deploy.test_hung_server import ready_server, ups
from tests.serving.processes import until

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
TEMPLATE = config.TEMPLATE.read_text()


@pytest.fixture(scope="module")
def well() -> Iterator[threading.Event]:
    """The server answers nothing before this is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(scope="module")
def grpc_port(well: threading.Event) -> Iterator[int]:
    class Silent(grpc.GenericRpcHandler):
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"" if well.wait() else b"a1")

    server = grpc.server(ThreadPoolExecutor(4), [Silent()])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    yield port
    well.set()
    server.stop(0).wait()


@pytest.fixture(scope="module")
def router(
    grpc_port: int, well: threading.Event, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Router]:
    """With shorter times than are served, or tests would take as long."""
    template: Path = tmp_path_factory.mktemp("router") / "haproxy.cfg"
    text = TEMPLATE
    for name in ("server", "http-request"):
        before, after = text.split(f"timeout {name} ")
        text = f"{before}timeout {name} 1s\n{after.partition(chr(10))[2]}"
    text = text.replace("timeout client 30s\n", "timeout client 1s\n")
    template.write_text(text)
    with (
        pytest.MonkeyPatch.context() as patch,
        ready_server("a1", lambda: "" if well.wait() else "a1") as place,
    ):
        patch.setattr(config, "TEMPLATE", template)
        places = [ServerPlace("a1", place.http, grpc_port, 100)]
        with running_router(places, 1, Limits(), choose_ports()) as running:
            until(lambda: ups(running, 1))
            yield running
            well.set()


def ask(router: Router, body: bytes) -> tuple[int, str]:
    """Status and error of a request of two bytes."""
    with closing(HTTPConnection(router.ports.http_url, timeout=60)) as connection:
        connection.request("POST", "/v2/models/recommend/infer", body, {"content-length": "2"})
        answer = connection.getresponse()
        assert answer.getheader("content-type") == "application/json"
        return answer.status, json.loads(answer.read())["error"]


def test_a_server_that_does_not_answer_in_time(router: Router) -> None:
    assert ask(router, b"{}") == (504, "no answer within 30 s")
    for url, protocol in ((router.ports.http_url, "http"), (router.ports.grpc_url, "grpc")):
        with (
            Recommender(url, protocol) as recommender,
            pytest.raises(Unreachable, match=rf"^{url}: no answer within 30 s$"),
        ):
            recommender.recommend([1, 2, 3])


def test_a_body_that_does_not_come(router: Router) -> None:
    assert ask(router, b"{") == (408, "the request did not come within 10 s")


def test_who_says_nothing_over_grpc_is_let_go(router: Router) -> None:
    """No shorter than a server's time: who waits for an answer says nothing either, and has it (above)."""
    with socket.create_connection((LOOPBACK, router.ports.grpc), 20) as silent:
        while silent.recv(100):  # of some releases a frame says so first
            pass


def test_a_server_that_hangs_up(router: Router, well: threading.Event) -> None:
    """The last one: no request waits any longer."""
    well.set()
    assert ask(router, b"{}") == (502, "no answer: the servers asked ended or hung up")


def test_times_that_are_told_are_those_that_are_served() -> None:
    assert "timeout server 30s\n" in TEMPLATE and TEMPLATE.count("no answer within 30 s") == 2
    assert "timeout http-request 10s\n" in TEMPLATE and TEMPLATE.count("did not come within 10 s") == 2
