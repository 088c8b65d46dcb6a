"""Which dead process takes the whole server along, and what is seen after another was replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from deploy import tritonserver, watch
from deploy.launch import Launch
from deploy.ports import Ports
from deploy.watch import ANSWERS_LATER, FAILED_PROBES, HAVE_PASSES, READS_REQUESTS, Trouble, Watch
from ensembles.served import served
from genrec import leftovers
from genrec.errors import ArtifactError
from genrec.steps import STEPS
from genrec.steps.later import AnswersLater
from tests.deploy.launches import launch
from tests.serving.processes import until
from tests.web import Quiet, answering

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


def test_every_model_that_has_passes_is_known() -> None:
    """Of what their steps load; an engine's layout alone, as a search reads it, is no pass."""
    loads = re.compile(
        r"^from genrec\.engine\.load\w* import .*\bload_(?:engine|executors|rank_executors)\b", re.M
    )
    models = {path.name for path in MODELS.iterdir()} & STEPS.keys()
    steps = {name: Path(str(import_module(f"genrec.steps.{name}").__file__)) for name in models}
    assert {name for name, file in steps.items() if loads.search(file.read_text())} == HAVE_PASSES


WAITS = """#!/bin/sh
read from_a_pipe_that_says_nothing
"""
COMPUTES = """#!/bin/sh
while :; do :; done
"""


@pytest.fixture(params=[(WAITS, "validity_lookup")])
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a process that stands for a server: it starts its one stub again whenever that ends."""
    script, model = request.param
    stub = tmp_path / model / "1" / tritonserver.STUB_NAME
    stub.parent.mkdir(parents=True)
    stub.write_text(script)
    stub.chmod(0o755)
    keep = ["/bin/sh", "-c", 'while :; do "$0"; done', str(stub)]
    with subprocess.Popen(keep, stdin=subprocess.PIPE, start_new_session=True) as server:
        until(lambda: tritonserver.living_stubs(server.pid))
        yield server.pid
        os.killpg(server.pid, signal.SIGKILL)


@pytest.fixture
def about(tmp_path: Path) -> Iterator[Launch]:
    """Of a server whose folder in /dev/shm is there."""
    found = launch(tmp_path)
    found.swap.mkdir()
    yield found
    leftovers.remove(found.prefix)


def test_a_server_whose_files_in_dev_shm_were_removed_starts_again(session: int, about: Launch) -> None:
    """As by systemd-logind when its user logs out. It would see no swap any more."""
    looks = Watch(about, session)
    assert looks.processes() is None
    leftovers.remove(about.prefix)
    trouble = looks.processes()
    assert trouble and "were removed" in trouble.told and not trouble.models


@pytest.mark.parametrize(
    ("session", "alone"),
    [((WAITS, "generate"), False), ((WAITS, "encode_history"), False), ((WAITS, "beam_search"), True)],
    indirect=["session"],
)
def test_who_takes_requests_along_takes_the_server_along(session: int, about: Launch, alone: bool) -> None:
    looks = Watch(about, session)
    ((dead, model),) = looks.models.items()
    os.kill(dead, signal.SIGKILL)
    until(lambda: tritonserver.living_stubs(session) not in ([], [dead]))
    trouble = looks.processes()
    assert trouble and trouble.models == ({model} if alone else set())


class Asked:
    """A server that says how many requests it has answered, and fails when it is asked; `meanwhile` it may answer."""

    def __init__(self, http: ThreadingHTTPServer) -> None:
        self.ports = Ports(http.server_port, http.server_port, http.server_port)
        self.items: list[int] = []  # that it was asked about
        self.answered, self.meanwhile = 7, 0


@pytest.fixture
def asked() -> Iterator[Asked]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            said = f'nv_inference_request_success{{model="recommend",version="1"}} {server.answered}\n'
            self.wfile.write(said.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.items += body["inputs"][0]["data"]
            server.answered += server.meanwhile
            self.send_error(500)

    with answering(Handler) as http:
        server = Asked(http)
        yield server


def asking(about: Launch, asked: Asked) -> Launch:
    return replace(about, ports=asked.ports, ensembles=("recommend",), models={"recommend": frozenset()})


def test_probes_that_fail_count_while_nobody_is_answered(about: Launch, asked: Asked) -> None:
    """Who answers others at that very moment is under load, and what failed before is forgotten."""
    looks = Watch(asking(about, asked), os.getpid())
    for meanwhile in (0, 1, 0):
        asked.meanwhile = meanwhile
        assert not any(looks.silence() for _ in range(FAILED_PROBES - 1))
    assert len(asked.items) == 3 * (FAILED_PROBES - 1), "one who answers nobody is asked each time"
    assert looks.silence() == Trouble(f"{FAILED_PROBES} probes failed")


def test_who_answers_is_not_asked(about: Launch, asked: Asked) -> None:
    looks = Watch(asking(about, asked), os.getpid())
    asked.answered += 1
    assert looks.silence() is None and not asked.items


def test_while_no_item_can_be_read_the_last_one_is_asked_about(about: Launch, asked: Asked) -> None:
    """It is no failed look either: three of these start the server again."""
    known = iter([3])

    def item() -> int:
        if (found := next(known, None)) is None:
            raise ArtifactError("catalogue.parquet", "cannot be read")
        return found

    looks = Watch(replace(asking(about, asked), item=item), os.getpid())
    assert looks.silence() is None and asked.items == [3]


def test_who_goes_on_after_a_stop_is_asked_again(
    session: int, about: Launch, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STOPPED_S", 600.0)
    monkeypatch.setattr(watch, "PROBE_TIMEOUT_S", 601.0)
    looks = Watch(asking(about, asked), session)
    ((stopped, _),) = looks.models.items()
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: tritonserver.state_of(stopped) == "T")
    assert looks.processes() is None and looks.silence() is None and not asked.items
    os.kill(stopped, signal.SIGCONT)
    until(lambda: tritonserver.state_of(stopped) != "T")
    assert looks.processes() is None and looks.silence() is None and asked.items


def test_a_server_that_hangs_is_seen_after_a_stopped_process_was_replaced(
    session: int, about: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens where the server should, so no probe is answered."""
    monkeypatch.setattr(watch, "STOPPED_S", 0.0)
    models = {"recommend": frozenset(["validity_lookup"])}
    looks = Watch(replace(about, ensembles=("recommend",), models=models), session)
    ((stopped, model),) = looks.models.items()
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: (looks.processes() or Trouble("")).models == {model})
    assert looks.silence() is None, "it is known why nobody answers"
    os.kill(stopped, signal.SIGKILL)
    until(lambda: tritonserver.living_stubs(session) not in ([], [stopped]))
    looks.take_stock()
    assert looks.processes() is None
    *before, last = [looks.silence() for _ in range(FAILED_PROBES)]
    assert not any(before) and last == Trouble(f"{FAILED_PROBES} probes failed")


@pytest.mark.parametrize("session", [(COMPUTES, "generate"), (COMPUTES, "validity_lookup")], indirect=True)
@pytest.mark.parametrize("used", ["generate", "prefill"])
def test_an_ensemble_that_computes_is_waited_for_longer(
    session: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    """As in a pass that takes longer than three probes. Nobody listens where the server should."""
    monkeypatch.setattr(watch, "COMPUTES", 0.0)  # on a busy machine it may have little of a core
    monkeypatch.setattr(watch, "COMPUTING_PROBES", FAILED_PROBES + 3)
    models = {"recommend": frozenset([used, "validity_lookup"])}
    looks = Watch(replace(launch(tmp_path), ensembles=("recommend",), models=models), session)
    ((stub, model),) = looks.models.items()

    def look() -> Trouble | None:
        before = tritonserver.computed_s(stub)
        until(lambda: tritonserver.computed_s(stub) > before)
        return looks.silence()

    many = FAILED_PROBES + 3 if model == used else FAILED_PROBES
    assert not any(look() for _ in range(many - 1))
    assert looks.could_not_look(OSError()) is None, "of looks this is the first that failed"
    assert look() == Trouble(f"{many} probes failed")
