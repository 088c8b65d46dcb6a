"""Which dead process takes the whole server along, and what a busy one is asked."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from deploy import probe
from deploy.watch import ANSWERS_LATER, READS_REQUESTS
from ensembles.served import served
from genrec.steps import STEPS
from genrec.steps.later import AnswersLater

MODELS = Path(__file__).resolve().parents[2] / "model_repository"


def test_every_model_that_answers_later_is_known() -> None:
    models = {path.name for path in MODELS.iterdir()} & STEPS.keys()
    classes = {name: getattr(import_module(f"genrec.steps.{name}"), STEPS[name]) for name in models}
    assert {name for name, step in classes.items() if issubclass(step, AnswersLater)} == ANSWERS_LATER


def test_every_model_that_reads_requests_is_known() -> None:
    """What an ensemble begins with, or takes of its inputs that may be left out; batches of others have no gaps."""
    found = served(3, True, True, "openvino")
    reads = {
        step.model
        for each in found
        for step in each.steps
        if set(step.inputs.values()) & {tensor.name for tensor in each.inputs if tensor.optional}
    }
    assert reads - ANSWERS_LATER == READS_REQUESTS


@pytest.mark.parametrize("ensemble", ["recommend", "rank", "recommend_and_rank", "pre_infer"])
def test_a_probe_is_due_before_nobody_listens(ensemble: str) -> None:
    """So a server under load refuses it in time, which shows that it lives."""
    asked = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.extend(json.loads(body)["inputs"])
            self.send_response(503)
            self.end_headers()
            self.wfile.write(f'{{"error": "in ensemble \'{ensemble}\', deadline_ms: too late"}}'.encode())

        def log_message(self, *given: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    assert probe.infer(f"127.0.0.1:{server.server_port}", ensemble, 7, 5.0).alive
    thread.join()
    server.server_close()
    (due,) = [tensor["data"] for tensor in asked if tensor["name"] == "deadline_ms"]
    assert 0 < due[0] < 5000
