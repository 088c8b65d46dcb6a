"""When a server is started anew: a dead process, a silent one after another was replaced, and one that is busy."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from deploy import probe, tritonserver, watch
from deploy.watch import ANSWERS_LATER, FAILED_PROBES, READS_REQUESTS, Trouble, Watch
from ensembles.served import served
from genrec.steps import STEPS
from genrec.steps.later import AnswersLater
from tests.deploy.launches import launch

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


def test_a_server_that_hangs_is_seen_after_a_stopped_process_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, model = {100: "S", 7: "S"}, "validity_lookup"
    monkeypatch.setattr(watch, "STOPPED_S", -1.0)
    monkeypatch.setattr(tritonserver, "state_of", lambda pid: states.get(pid, ""))
    monkeypatch.setattr(tritonserver, "living_stubs", lambda session: sorted(states.keys() - {session}))
    monkeypatch.setattr(tritonserver, "model_of", lambda _: model)
    monkeypatch.setattr(probe, "infer_all", lambda _, asked, *__: dict.fromkeys(asked, "timed out"))
    looks = Watch(replace(launch(tmp_path), ensembles=("recommend",)), 100)
    states[7] = "T"
    trouble = looks.processes()
    assert trouble and trouble.models == {model}
    assert looks.silence() is None, "it is known why nobody answers"
    del states[7]
    states[8] = "S"
    looks.take_stock()
    assert looks.processes() is None
    *before, last = [looks.silence() for _ in range(FAILED_PROBES)]
    assert not any(before) and last == Trouble(f"{FAILED_PROBES} probes failed")
