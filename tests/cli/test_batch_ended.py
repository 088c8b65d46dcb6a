"""`genrec batch --url` that is ended while its server hangs: it ends too, and keeps what it was answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from genrec.report import Report
from tests.serving.processes import until
from tests.web import Quiet, answering

ANSWER = {"item_ids": [[7]], "scores": [[0.0]], "report": [Report(0, 0, 0, 1, 1, 1)]}
TYPES = {"item_ids": ("INT64", np.int64), "scores": ("FP32", np.float32), "report": ("INT64", np.int64)}
COMMAND = """
import sys
from cli import batch_files
from cli.main import main
batch_files.BLOCK_USERS = 2
sys.exit(main(sys.argv[1:]))
"""


class Hanging:
    """Answers who asks in the beginning whether it is there, and two users; from then on nobody until it is left."""

    def __init__(self) -> None:
        self._left, self._over, self.asked = iter(range(3)), threading.Event(), threading.Event()

    def hang(self) -> None:
        if next(self._left, None) is None:
            self.asked.set()
            self._over.wait()

    @contextmanager
    def over_http(self) -> Iterator[str]:
        class Handler(Quiet):
            def do_GET(handler) -> None:
                handler.answer({"name": "one"})

            def do_POST(handler) -> None:
                handler.rfile.read(int(handler.headers["content-length"]))
                self.hang()
                outputs = [
                    {
                        "name": name,
                        "datatype": TYPES[name][0],
                        "shape": np.shape(of),
                        "data": np.ravel(of).tolist(),
                    }
                    for name, of in ANSWER.items()
                ]
                handler.answer({"outputs": outputs})

            def answer(handler, said: dict[str, Any]) -> None:
                body = json.dumps(said).encode()
                handler.send_response(200)
                handler.send_header("content-length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

        with answering(Handler) as web:
            try:
                yield f"127.0.0.1:{web.server_port}"
            finally:
                self._over.set()

    @contextmanager
    def over_grpc(self) -> Iterator[str]:
        class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
            def ServerMetadata(servicer, request: Any, context: Any) -> Any:
                return service_pb2.ServerMetadataResponse(name="one")

            def ModelInfer(servicer, request: Any, context: Any) -> Any:
                self.hang()
                response = service_pb2.ModelInferResponse()
                for name, of in ANSWER.items():
                    response.outputs.add(name=name, datatype=TYPES[name][0], shape=np.shape(of))
                    response.raw_output_contents.append(np.array(of, TYPES[name][1]).tobytes())
                return response

        server = grpc.server(ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            self._over.set()
            server.stop(None)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_hangs_holds_up_nobody_who_ends_the_command(
    shop: Path, tmp_path: Path, protocol: str
) -> None:
    """Each request under way would have waited for it, for a minute. Two of the shop's four users were answered."""
    server, out = Hanging(), tmp_path / "lists.csv"
    with server.over_grpc() if protocol == "grpc" else server.over_http() as url:
        command = [
            sys.executable,
            "-c",
            COMMAND,
            "batch",
            shop,
            "--out",
            out,
            "--url",
            url,
            "--protocol",
            protocol,
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(lambda: server.asked.is_set() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=40)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in said
    assert f"{out}.parts keeps what is answered" in said
