"""The launcher: two servers at once, a dead stub, a dead launcher, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc

from deploy import server_files, supervisor
from deploy.launch import LaunchError
from deploy.launcher import RunningServer, _ensembles, _repository, running_server
from deploy.ports import choose_ports
from deploy.private import PrivateFolder
from genrec import leftovers
from genrec.errors import InputError
from tests.conftest import BEAM_WIDTH
from tests.serving.processes import left_of, stub_of, until
from tests.serving.servers import brief_server
from tests.serving.wire import ask, tensors

pytestmark = pytest.mark.serving
ROOT = Path(__file__).resolve().parents[2]
SERVE = """
import sys
from pathlib import Path
from deploy import launcher, watch
watch.PROBE_TIMEOUT_S = 1.0
watch.STOPPED_S = float("inf")  # so that a stopped process is one that hangs, of which nothing but a probe can tell
launcher.serve(Path(sys.argv[1]), run_dir=Path(sys.argv[2]), beam_width=8, probe_every_s=0.5,
               ensembles=("recommend", "recommend_draft"))
"""


def launched(artifact: Path, run_dir: Path, said: Path) -> subprocess.Popen[bytes]:
    """`serve` in a process of its own."""
    command = [sys.executable, "-c", SERVE, artifact, run_dir]
    with said.open("wb") as stderr:
        return subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)


class Served:
    """`serve` in a process of its own, as a person would run it; `about` is its server.json."""

    def __init__(self, artifact: Path, run_dir: Path) -> None:
        self.file = run_dir / "server.json"
        self._stderr = run_dir / "stderr"
        self.launcher = launched(artifact, run_dir, self._stderr)
        until(lambda: self.file.exists() or self.launcher.poll() is not None)

    @property
    def about(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    def told(self, words: str) -> int:
        """How often the launcher has said so."""
        return self._stderr.read_text().count(words)

    def shm(self) -> list[Path]:
        return list(leftovers.SHM.glob(f"genrec-*-{self.launcher.pid}-*"))

    def ask(self, history: list[int]) -> np.ndarray:
        return ask(tritonclient.grpc, self.about["grpc_url"], tensors(history))["item_ids"]

    def end(self, number: int) -> int:
        self.launcher.send_signal(number)
        return self.launcher.wait(60)


@pytest.fixture(scope="module")
def served(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A second server that the tests below treat worse and worse, in their order."""
    second = Served(tiny, tmp_path_factory.mktemp("run"))
    yield second
    if second.launcher.poll() is None:
        second.end(signal.SIGTERM)


def test_two_servers_side_by_side(server: RunningServer, served: Served, items: list[int]) -> None:
    assert served.about["token"] != server.token
    assert served.about["grpc_url"] != server.grpc_url
    assert served.file.stat().st_mode & 0o777 == 0o600  # it holds the token
    here = ask(tritonclient.grpc, server.grpc_url, tensors(items[:3]))["item_ids"]
    assert served.ask(items[:3]).shape == here.shape


def test_killed_server_is_noticed_and_answers_again(served: Served, items: list[int]) -> None:
    before, about = served.ask(items[:3]), served.about
    os.kill(about["pid"], signal.SIGKILL)
    until(lambda: served.about["pid"] != about["pid"])
    assert served.about == {**about, "pid": served.about["pid"]}  # the same ports, the same token
    np.testing.assert_array_equal(served.ask(items[:3]), before)
    assert left_of(about["pid"]) == []


@pytest.mark.long
def test_a_server_that_hangs_is_restarted_after_three_failed_probes(served: Served, items: list[int]) -> None:
    """One or two failures are forgiven."""
    before, about = served.ask(items[:3]), served.about
    os.kill(about["pid"], signal.SIGSTOP)
    until(lambda: served.told("recommend: probe 1 of 3 failed: TimeoutError"))
    os.kill(about["pid"], signal.SIGCONT)
    np.testing.assert_array_equal(served.ask(items[:3]), before)
    assert served.about["pid"] == about["pid"]
    os.kill(stub_of(about["pid"], "draft_beam"), signal.SIGSTOP)  # `recommend` does without it
    until(lambda: served.about["pid"] != about["pid"])
    assert served.told("recommend: probe 3") == 0  # what was answered in between began the count anew
    assert served.told("recommend_draft: probe 3 of 3 failed") == 1
    assert served.told("restarting the server: 3 probes failed") == 1
    np.testing.assert_array_equal(served.ask(items[:3]), before)
    assert left_of(about["pid"]) == []


@pytest.mark.long
def test_a_server_that_sticks_while_it_loads_is_started_again(
    tiny: Path, tmp_path: Path, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LEAST_RESTART_S", 6.0)
    monkeypatch.setattr(supervisor, "SLOWER_RESTART", 0.0)
    with brief_server(tiny, run_dir=tmp_path, beam_width=8, ensembles=("recommend",)) as running:
        first = running.supervisor.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: running.supervisor.pid not in (0, first))
        stuck = running.supervisor.pid
        os.kill(stuck, signal.SIGSTOP)
        until(lambda: running.supervisor.restarts)
        assert running.supervisor.pid not in (first, stuck)
        assert left_of(stuck) == []
        assert len(ask(tritonclient.grpc, running.grpc_url, tensors(items[:3]))["item_ids"][0])


def test_sigterm_leaves_nothing(served: Served) -> None:
    pid = served.about["pid"]
    assert served.shm()
    assert served.end(signal.SIGTERM) == 0
    assert left_of(pid) == []
    assert served.shm() == []
    assert not served.file.exists()


def test_killed_launcher_takes_its_server_along(tiny: Path, tmp_path: Path) -> None:
    killed = Served(tiny, tmp_path)
    pid = killed.about["pid"]
    assert killed.shm()  # the arena at least
    killed.end(signal.SIGKILL)
    until(lambda: left_of(pid) == [], lambda: left_of(pid))
    assert killed.shm() == []


@pytest.mark.parametrize("stuck", [False, True])
def test_a_launcher_killed_while_its_server_loads_leaves_no_process(
    tiny: Path, tmp_path: Path, stuck: bool
) -> None:
    launcher = launched(tiny, tmp_path, tmp_path / "stderr")
    below = psutil.Process(launcher.pid)

    def stubs() -> list[psutil.Process]:
        """The server's own children. What these start while they load has their name too, and comes and goes."""
        with contextlib.suppress(psutil.NoSuchProcess):  # children of the launcher do so as well
            servers = [each for each in below.children() if each.name() == "tritonserver"]
            return [each for server in servers for each in server.children() if "stub" in each.name()]
        return []

    until(lambda: len(stubs()) > 2 or launcher.poll() is not None)
    left = below.children(recursive=True)
    if stuck:  # a stub that does not look after itself, and the server
        stub = stubs()[0]
        stub.suspend()
        psutil.Process(stub.ppid()).kill()
    launcher.kill()
    launcher.wait(60)
    assert len(left) > 3

    def runs(each: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return each.is_running() and each.status() != psutil.STATUS_ZOMBIE
        return False

    until(lambda: not any(map(runs, left)))
    assert list(leftovers.SHM.glob(f"genrec-*-{launcher.pid}-*")) == []


def test_a_server_on_path_is_used_with_the_backends_beside_it(
    server: RunningServer, tiny: Path, items: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's layout, /opt/tritonserver, made of the files at hand; PATH leads there through a link."""
    files, root, on_path = server_files.find_server(), tmp_path / "opt" / "tritonserver", tmp_path / "bin"
    python = root / "backends" / "python"
    for folder in (root / "bin", python, on_path):
        folder.mkdir(parents=True)
    binary = Path(shutil.copy(files.binary, root / "bin" / "tritonserver"))
    for file in (files.library, files.stub, files.utilities):
        (python / file.name).symlink_to(file)
    (on_path / "tritonserver").symlink_to(binary)
    monkeypatch.setenv("PATH", f"{on_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", server_files.library_path(files))  # a container knows these without
    history = tensors(items[:3])
    with brief_server(tiny, beam_width=BEAM_WIDTH, ensembles=("recommend",)) as running:
        assert Path(f"/proc/{running.pid}/exe").readlink() == binary
        used = PrivateFolder.of(running.supervisor.prefix).backends / "python"
        for file in python.iterdir():
            assert (used / file.name).readlink() == file
        found = ask(tritonclient.grpc, running.grpc_url, history)
    expected = ask(tritonclient.grpc, server.grpc_url, history)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("field", ["http_port", "grpc_port", "metrics_port"])
def test_port_in_use_is_named(tiny: Path, field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"{field}: port {port} is in use"),
            running_server(tiny, **{field: port}),
        ):
            pass


def test_ports_differ_and_are_checked() -> None:
    ports = choose_ports()
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    with pytest.raises(InputError, match="twice"):
        choose_ports(http=ports.http, grpc=ports.http)
    with pytest.raises(InputError, match="http_port"):
        choose_ports(http=70000)


LOADING_FAILED = r"""E 1 model_lifecycle.cc:642] "failed to load 'prefill' version 1: x.onnx:\nmissing\n\nAt:"
error: creating server: Internal - failed to load all models
"""
PORT_TAKEN = "error: failed to start HTTP service: Unavailable - Socket '127.0.0.1:1' already in use\n"


def test_ensembles_left_out_take_their_models_along(tiny: Path, tmp_path: Path) -> None:
    chosen = _ensembles(tiny, "openvino", ("recommend",))
    _repository(chosen, tmp_path / "models")
    names = {path.name for path in (tmp_path / "models").iterdir()}
    assert names == {"recommend", "encode_history", "generate", "validity_lookup"}
    with pytest.raises(InputError, match=r"rank .*recommend, recommend_staged, recommend_draft"):
        _ensembles(tiny, "openvino", ("recommend", "rank"))


@pytest.mark.parametrize(
    ("told", "message", "starts"),
    [
        (LOADING_FAILED, r"prefill: x.onnx: missing$", 1),
        (PORT_TAKEN, "already in use", 3),
    ],
)
def test_failed_start_says_why_and_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, message: str, starts: int
) -> None:
    """A stand-in for the server that fails with lines of the real one's log."""
    files = server_files.find_server()
    (tmp_path / "log").write_text(told)
    binary = tmp_path / "tritonserver"
    binary.write_text(f"#!/bin/sh\necho start >> {tmp_path}/starts\ncat {tmp_path}/log\nexit 1\n")
    binary.chmod(0o700)
    monkeypatch.setattr(server_files, "find_server", lambda: replace(files, binary=binary))
    monkeypatch.setattr(server_files, "check_libraries", lambda files: None)
    own = f"genrec-*-{os.getpid()}-*"
    before = set(leftovers.SHM.glob(own))
    with pytest.raises(LaunchError, match=message), running_server(tiny, run_dir=tmp_path / "run"):
        pass
    assert (tmp_path / "starts").read_text().count("start") == starts
    assert set(leftovers.SHM.glob(own)) == before


def test_leftovers_of_the_living_and_of_strangers_stay(tmp_path: Path) -> None:
    own = leftovers.SHM / f"{leftovers.own_prefix()}x"
    namespace = os.stat("/proc/self/ns/pid").st_ino
    dead = leftovers.SHM / f"genrec-{namespace}-{os.getpid()}-1-aaaa-x"  # our pid, an earlier process
    stranger = leftovers.SHM / "genrec-1-1-1-aaaa-x"  # of another pid namespace
    try:
        for path in (own, dead, stranger):
            path.touch()
        leftovers.remove_of_the_dead()
        assert (own.exists(), dead.exists(), stranger.exists()) == (True, False, True)
    finally:
        for path in (own, dead, stranger):
            path.unlink(missing_ok=True)
