"""What passes by itself does not end a service: a port that another takes, a full /dev/shm. About 20 s: two servers."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from deploy import launcher, ports, shared_memory, supervisor, tritonserver, watch
from deploy.launch import LaunchError, NoRoom, passes
from deploy.launcher import RunningServer, running_server
from genrec.errors import ArtifactError
from tests.serving.processes import left_of, stub_of, until
from tests.serving.servers import brief_server
from tests.serving.wire import ask, tensors

HERE = "127.0.0.1"
FEW_FILES = 256  # beyond those that this process has open: it passes its limit on to the server
ENSEMBLES = ("recommend", "recommend_draft")


def items_of(server: RunningServer, items: list[int], model: str = "recommend") -> np.ndarray:
    return ask(tritonclient.grpc, server.grpc_url, tensors(items[:3]), model)["item_ids"]


def few_files() -> int:
    return FEW_FILES + max(int(name) for name in os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def weak(tiny: Path) -> Iterator[RunningServer]:
    """A server that the tests below mistreat, started where descriptors are few; it pauses little between starts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = few_files()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        try:
            running = stack.enter_context(brief_server(tiny, beam_width=8, ensembles=ENSEMBLES))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        patch.setattr(supervisor, "LONGEST_PAUSE_S", 0.1)
        yield running


def test_idle_connections_leave_the_server_answering(weak: RunningServer, items: list[int]) -> None:
    """More than it had descriptors for, over both protocols."""
    with ExitStack() as stack:
        for port in (weak.ports.http, weak.ports.grpc):
            for _ in range(few_files()):
                stack.enter_context(socket.create_connection((HERE, port)))
        assert items_of(weak, items).size
        with urllib.request.urlopen(f"http://{weak.http_url}/v2/health/live", timeout=60) as response:
            assert response.status == 200


def test_a_process_that_was_stopped_is_replaced_while_other_ensembles_go_on(
    weak: RunningServer, items: list[int]
) -> None:
    before, restarts, pid = items_of(weak, items, "recommend_draft"), weak.restarts, weak.pid
    stopped = stub_of(pid, "draft_beam")
    os.kill(stopped, signal.SIGSTOP)
    answered = 0
    while weak.restarts == restarts:
        answered += len(items_of(weak, items)) > 0
    assert (answered > 0, weak.pid) == (True, pid)
    assert stub_of(pid, "draft_beam") != stopped
    np.testing.assert_array_equal(items_of(weak, items, "recommend_draft"), before)


def test_a_stopped_server_is_replaced(weak: RunningServer, items: list[int]) -> None:
    """At once, not after probes: they would take longer than this waits."""
    assert watch.STOPPED_S < watch.PROBE_TIMEOUT_S
    before, restarts, pid = items_of(weak, items), weak.restarts, weak.pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: weak.restarts == restarts + 1)
    assert weak.pid != pid and left_of(pid) == []
    np.testing.assert_array_equal(items_of(weak, items), before)


@pytest.mark.long
def test_a_restart_waits_for_room_and_for_its_ports(
    weak: RunningServer, items: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More often than a start that a person must mend is tried; then another holds the metrics port for one start."""
    before, restarts = items_of(weak, items), weak.restarts
    refusals, start = supervisor.FAILED_STARTS + 1, tritonserver.start
    strangers: list[socket.socket] = []

    def no_room(*sizes: int) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise NoRoom("/dev/shm", f"needs {sizes}", "less")

    def taken_once(*given: Any) -> Any:
        if strangers:
            strangers[0].close()
        else:
            strangers.append(socket.create_server((HERE, weak.ports.metrics)))
        return start(*given)

    monkeypatch.setattr(shared_memory, "_check_room", no_room)
    monkeypatch.setattr(tritonserver, "start", taken_once)
    os.kill(weak.pid, signal.SIGKILL)
    until(lambda: weak.restarts == restarts + 1)
    np.testing.assert_array_equal(items_of(weak, items), before)
    assert caplog.text.count("/dev/shm: needs") == supervisor.FAILED_STARTS + 1
    assert f"{HERE}:{weak.ports.metrics}' already in use" in caplog.text


@pytest.mark.long
def test_a_process_that_stood_still_for_a_moment_gives_no_wrong_answer(
    weak: RunningServer, items: list[int]
) -> None:
    """Triton takes it for dead after a second, frees what it had asked, and the process goes on with that."""
    before, stood = items_of(weak, items, "recommend_draft"), stub_of(weak.pid, "draft_beam")

    def answer() -> bool:
        try:
            found = items_of(weak, items, "recommend_draft")
        except InferenceServerException:
            return False
        np.testing.assert_array_equal(found, before)
        return True

    with ThreadPoolExecutor() as threads:
        os.kill(stood, signal.SIGSTOP)
        asked = [threads.submit(answer) for _ in range(4)]
        time.sleep(1.5)
        os.kill(stood, signal.SIGCONT)
        for each in asked:
            each.result()
    until(answer)


@pytest.mark.long
def test_a_taken_metrics_port_ends_the_start_and_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken after it was looked at; it is the last that the server binds, when it answers requests already."""
    is_free = ports.is_free
    with socket.create_server((HERE, 0)) as stranger:
        port = stranger.getsockname()[1]
        monkeypatch.setattr(ports, "is_free", lambda asked: asked == port or is_free(asked))
        with (
            pytest.raises(LaunchError, match=rf"{HERE}:{port}' already in use"),
            running_server(tiny, beam_width=8, metrics_port=port, ensembles=("recommend",)),
        ):
            pass


@pytest.mark.parametrize("error", [ArtifactError("x.onnx", "is missing"), ValueError("a bug")])
def test_what_a_person_must_mend_is_said_after_a_few_starts(error: Exception) -> None:
    assert not passes(error)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), NoRoom("/dev/shm", "needs much", "little")]
)
def test_what_passes_is_waited_for(error: Exception) -> None:
    assert passes(error)


def test_too_many_slots_are_refused_with_the_setting_and_the_place(tiny: Path) -> None:
    with (
        pytest.raises(
            NoRoom,
            match=r"/dev/shm: needs \d+ MiB: \d+ MiB for the KV arena .*--ensembles.*accepted: \d+ MiB",
        ),
        running_server(tiny, beam_width=8, arena_slots=10**8),
    ):
        pass


def test_server_json_is_whole_at_every_moment(
    tmp_path: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in the middle of writing, it leaves the one before."""
    file = server.run_dir / "server.json"
    before = file.read_text()
    monkeypatch.setattr(os, "replace", lambda source, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launcher._write_server_json(server)
    assert file.read_text() == before
    assert not file.with_name("server.json.partial").exists()
