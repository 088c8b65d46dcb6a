"""The launcher: two servers at once, a dead stub, a dead launcher, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from deploy import leftovers, process
from deploy.launcher import LaunchError, RunningServer, running_server
from deploy.ports import choose_ports
from genrec.errors import InputError
from tests.serving.wire import ask, tensors

pytestmark = pytest.mark.serving
ROOT = Path(__file__).resolve().parents[2]
SERVE = """
import sys
from pathlib import Path
from deploy.launcher import serve
serve(Path(sys.argv[1]), run_dir=Path(sys.argv[2]), beam_width=8)
"""


def until(done: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def answers(server: RunningServer, history: list[int]) -> np.ndarray | None:
    try:
        return ask(tritonclient.grpc, server.grpc_url, tensors(history))["item_ids"]
    except InferenceServerException:
        return None


@pytest.fixture(scope="module")
def second(tiny: Path) -> Iterator[tuple[RunningServer, ExitStack]]:
    """A server these tests may ill-treat, and what ends it."""
    with ExitStack() as stack:
        running = stack.enter_context(running_server(tiny, beam_width=8, probe_every_s=1.0))
        yield running, stack


def test_two_servers_side_by_side(
    server: RunningServer, second: tuple[RunningServer, ExitStack], items: list[int]
) -> None:
    other, _ = second
    assert other.token != server.token
    assert len({*vars(other.ports).values(), *vars(server.ports).values()}) == 6
    assert answers(server, items[:3]) is not None
    assert answers(other, items[:3]) is not None


def test_killed_stub_is_noticed_and_the_server_answers_again(
    second: tuple[RunningServer, ExitStack], items: list[int]
) -> None:
    other, _ = second
    before, pid = answers(other, items[:3]), other.pid
    os.kill(process.living_stubs(pid)[0], signal.SIGKILL)
    until(lambda: other.restarts == 1)
    np.testing.assert_array_equal(answers(other, items[:3]), before)
    assert other.pid != pid
    assert process.members(pid) == []
    about = json.loads((other.run_dir / "server.json").read_text())
    assert (about["pid"], about["grpc_url"]) == (other.pid, other.grpc_url)
    assert (other.run_dir / "server.json").stat().st_mode & 0o777 == 0o600


def test_end_leaves_nothing(second: tuple[RunningServer, ExitStack]) -> None:
    other, stack = second
    pid, prefix = other.pid, other.supervisor.prefix
    assert leftovers.files_of(prefix)
    stack.close()
    assert process.members(pid) == []
    assert leftovers.files_of(prefix) == []
    assert not other.run_dir.exists()


def start_serve(artifact: Path, run_dir: Path) -> tuple[subprocess.Popen[bytes], int]:
    """`serve` in a process of its own; returns it and its tritonserver's pid once that answers."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", SERVE, artifact, run_dir], cwd=ROOT, start_new_session=True
    )
    about = run_dir / "server.json"
    until(lambda: about.exists() or launcher.poll() is not None)
    return launcher, json.loads(about.read_text())["pid"]


def shm_of(launcher: subprocess.Popen[bytes]) -> list[Path]:
    return list(leftovers.SHM.glob(f"genrec-*-{launcher.pid}-*"))


def test_sigterm_ends_serve_cleanly(tiny: Path, tmp_path: Path) -> None:
    launcher, pid = start_serve(tiny, tmp_path)
    assert shm_of(launcher)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 0
    assert process.members(pid) == []
    assert shm_of(launcher) == []
    assert not (tmp_path / "server.json").exists()


def test_killed_launcher_takes_its_server_along(tiny: Path, tmp_path: Path) -> None:
    launcher, pid = start_serve(tiny, tmp_path)
    launcher.kill()
    launcher.wait()
    until(lambda: process.members(pid) == [], 30)
    assert shm_of(launcher)  # the arena at least: nobody was there to unlink it
    leftovers.remove_of_the_dead()
    assert shm_of(launcher) == []


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


def test_failed_start_says_why_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """A step that cannot load: the model and its reason are in the error."""
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "validity.safetensors").write_bytes(b"nonsense")
    before = set(leftovers.SHM.glob(f"genrec-*-{os.getpid()}-*"))
    with (
        pytest.raises(LaunchError, match=r"validity\.safetensors"),
        running_server(broken, run_dir=tmp_path / "run"),
    ):
        pass
    assert set(leftovers.SHM.glob(f"genrec-*-{os.getpid()}-*")) == before


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
