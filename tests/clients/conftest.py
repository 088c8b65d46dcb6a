"""The session's tritonserver, and servers that misbehave on purpose."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.web import Quiet, answering

LOOPBACK = "127.0.0.1"


class Failing:
    """A gRPC and an HTTP server that keep the headers they get and answer every request with an internal error."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.urls: dict[str, str] = {}


@pytest.fixture
def failing() -> Iterator[Failing]:
    kept = Failing()

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelInfer(self, request: object, context: grpc.ServicerContext) -> None:
            kept.headers.append(dict(context.invocation_metadata()))
            context.abort(grpc.StatusCode.INTERNAL, "in ensemble 'recommend', prefill: internal error")

    class Handler(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            kept.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = json.dumps({"error": "in ensemble 'recommend', prefill: internal error"}).encode()
            self.send_response(500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    rpc = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), rpc)
    kept.urls["grpc"] = f"{LOOPBACK}:{rpc.add_insecure_port(f'{LOOPBACK}:0')}"
    rpc.start()
    with answering(Handler) as web:
        kept.urls["http"] = f"{LOOPBACK}:{web.server_port}"
        yield kept
    rpc.stop(None)


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield f"{LOOPBACK}:{listening.getsockname()[1]}"


@pytest.fixture
def closed_url() -> Iterator[str]:
    """A port that is taken but where nobody listens."""
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{bound.getsockname()[1]}"
