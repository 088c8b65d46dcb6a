"""A fleet whose router or servers fail under it: what it ends, and what it says. The router is a real one."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.launch import LaunchError
from deploy.launcher import RunningServer
from deploy.ports import LOOPBACK, choose_ports
from deploy.router import fleet as fleets
from deploy.router.fleet import STATE, Fleet
from deploy.router.haproxy import CONFIG, SETTLED_S, Router, RouterError
from deploy.router.limits import Limits
from genrec.errors import InputError
from tests.deploy.conftest import NEW, OLD, generation
from tests.serving.processes import until
from tests.web import Quiet, answering

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


def end_for_good(router: Router) -> None:
    (router.folder / CONFIG).write_text("none")  # or it would be started again
    router.process.kill()
    router.process.wait()


@pytest.mark.parametrize("share", [100, 50, 0])
def test_a_router_that_ends_in_a_move_takes_the_new_servers_along(
    fleet: Fleet, ended: list[Path], share: int
) -> None:
    with pytest.raises(RouterError):
        fleet.move(NEW, share, lambda _: end_for_good(fleet.router))
    assert ended == [NEW] and fleet.coming is None and fleet.share == 0
    fleet.close()
    assert ended == [NEW, OLD]


def test_a_router_that_ends_while_servers_start_is_started_again_meanwhile(
    fleet: Fleet, ended: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of the old servers do not wait for the new ones."""
    fleet.coming, first = None, fleet.router.process
    fleet.router.started -= SETTLED_S  # as if it had run for so long

    @contextmanager
    def slow(artifact: Path, **_: object) -> Iterator[RunningServer]:
        first.kill()
        until(lambda: fleet.router.process is not first)
        yield generation(artifact, "b1", ended).servers[0]

    monkeypatch.setattr(fleets, "running_server", slow)
    monkeypatch.setattr(fleets, "catalogue_id", str)  # of a folder that is not there
    told: list[str] = []
    fleet.move(NEW, 30, told.append)
    (server,) = fleet.coming.servers if fleet.coming else ()
    at = f"http {server.http_url}  metrics http://{server.metrics_url}/metrics"
    assert told[-1] == f"server: {at}  run folder {server.run_dir}"
    assert fleet.coming and fleet.share == 30 and fleet.router.process.poll() is None


@pytest.mark.parametrize("known", [True, False])
def test_a_signal_while_new_servers_start_does_not_wait_for_them(
    fleet: Fleet, ended: list[Path], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A large model takes minutes to start. Its supervisor may not be there yet, as while files are verified."""
    fleet.coming, broken_off, stopped = None, threading.Event(), threading.Event()
    signals = iter([KeyboardInterrupt])

    @contextmanager
    def slow(artifact: Path, supervised: Callable[[object], None], **_: object) -> Iterator[RunningServer]:
        if not known:
            broken_off.wait(60)
        supervised(SimpleNamespace(stop=lambda wait: wait or stopped.set()))
        told.set()
        assert stopped.wait(60), "it is waited for until it answers"
        raise LaunchError("stopped while starting", Path("none"), 0)
        yield

    def look() -> None:
        if (not known or told.is_set()) and (signal := next(signals, None)):
            broken_off.set()
            raise signal

    told = threading.Event()
    monkeypatch.setattr(fleets, "running_server", slow)
    monkeypatch.setattr(fleet, "_keep_router", look)
    with pytest.raises(KeyboardInterrupt):
        fleet.move(NEW, 100)
    assert stopped.is_set() and not ended


def test_a_router_is_started_again_though_nothing_can_be_written_of_it(fleet: Fleet) -> None:
    """As in a full /dev/shm. What is served has not changed, so there is nothing to write: the same servers have the
    same shares of the users.
    """
    fleet.share = 30
    (fleet.router.folder / f"{STATE}.partial").mkdir()  # in the way of the file
    first = fleet.router.process
    fleet.router.started -= SETTLED_S  # as if it had run for so long
    first.kill()
    first.wait()
    fleet.check()
    assert fleet.router.process is not first and fleet.router.process.poll() is None
    assert fleet.coming
    for each, weight in ((fleet.serving, 70), (fleet.coming, 30)):
        (place,), (server,) = each.places, each.servers
        for backend, port in (("be_grpc", server.ports.grpc), ("be_http", server.ports.http)):
            told = fleet.router.ask(f"show servers state {backend}").splitlines()
            (state,) = (line.split() for line in told if f" {place} " in line)
            assert (state[7], state[18]) == (str(weight), str(port))


def test_a_router_whose_files_in_dev_shm_were_removed_is_started_again(fleet: Fleet) -> None:
    """As by systemd-logind when its user logs out: its servers start again too, and nobody would be before them."""
    first = fleet.router.process
    fleet.router.started -= SETTLED_S  # as if it had run for so long
    shutil.rmtree(fleet.router.folder)
    fleet.check()
    assert fleet.router.process is not first and fleet.router.process.poll() is None
    assert json.loads((fleet.router.folder / STATE).read_text())["serving"] == str(OLD)
    assert fleet.router.folder.stat().st_mode & 0o777 == 0o700


def test_a_router_whose_port_is_taken_starts_again_when_it_is_free(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a client socket, in the moment between its end and its start."""
    first, port = fleet.router.process, fleet.router.ports.grpc
    fleet.router.started -= SETTLED_S  # as if it had run for so long
    first.kill()
    first.wait()
    with socket.create_server((LOOPBACK, port)) as stranger:

        def leave() -> None:
            until(lambda: f"port {port} is in use" in caplog.text)
            stranger.close()

        threading.Thread(target=leave, daemon=True).start()
        fleet.check()
    assert fleet.router.process is not first and fleet.router.process.poll() is None


def test_servers_end_though_the_router_cannot_take_them_out(fleet: Fleet, ended: list[Path]) -> None:
    end_for_good(fleet.router)
    with pytest.raises(RouterError):
        fleet._stop(fleet.serving)
    assert ended == [OLD]


def test_prometheus_is_told_of_all_that_runs(fleet: Fleet, tmp_path: Path) -> None:
    def told() -> list[object]:
        found: list[object] = json.loads((tmp_path / "targets.json").read_text())
        return found

    def group(server: RunningServer, name: str, place: str) -> dict[str, object]:
        labels = {"artifact": name, "catalogue": f"catalogue of {name}", "place": place}
        return {"targets": [server.metrics_url], "labels": labels}

    assert fleet.coming
    (old,), (new,) = fleet.serving.servers, fleet.coming.servers
    router = {"targets": [fleet.router.ports.metrics_url]}
    fleet.move(NEW, 50)
    assert told() == [router, group(old, "old", "a1"), group(new, "new", "b1")]
    fleet.move(NEW, 100)
    assert told() == [router, group(new, "new", "b1")]
    fleet.close()
    assert told() == []


@pytest.mark.parametrize(
    ("name", "says"), [("none/t.json", "whose folder is missing"), (".", "which is a folder")]
)
def test_targets_are_a_file_in_a_folder(tmp_path: Path, name: str, says: str) -> None:
    with (
        pytest.raises(InputError, match=f"targets: is .*, {says}"),
        fleets.running_fleet(OLD, 1, Limits(), choose_ports(), tmp_path / name),
    ):
        pass


def test_a_fleet_goes_on_though_prometheus_cannot_be_told(
    fleet: Fleet, ended: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "targets.json.partial").mkdir()  # in the way of the file
    fleet.move(NEW, 100)
    assert fleet.serving.artifact == NEW and ended == [OLD]
    fleet.close()
    assert ended == [OLD, NEW] and "targets for Prometheus cannot be written" in caplog.text


def test_a_server_that_does_not_end_keeps_no_other_from_ending(fleet: Fleet, ended: list[Path]) -> None:
    def never() -> None:
        raise TimeoutError("new does not end")

    assert fleet.coming
    fleet.coming.stack.callback(never)
    with pytest.raises(TimeoutError, match="new does not end"):
        fleet.close()
    assert ended == [NEW, OLD]


def test_all_servers_are_told_to_end_before_one_is_waited_for(fleet: Fleet, ended: list[Path]) -> None:
    """Who is told last would start again what systemd has ended, which tells all processes at once."""
    for each in filter(None, (fleet.serving, fleet.coming)):
        told = SimpleNamespace(stop=lambda wait, name=each.artifact / "told": wait or ended.append(name))
        each.servers = [replace(server, supervisor=told) for server in each.servers]
    fleet.close()
    assert sorted(ended[:2]) == [NEW / "told", OLD / "told"] and sorted(ended[2:]) == [NEW, OLD]


def test_a_server_that_ends_is_not_kept_by_a_connection_that_nobody_uses(fleet: Fleet) -> None:
    """Triton waits for its last connection, and a router keeps some for who comes next."""
    over = threading.Event()

    class Ready(Quiet):
        protocol_version = "HTTP/1.1"  # or each answer would end a connection

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def finish(self) -> None:
            super().finish()
            if getattr(self, "path", "").startswith("/v2/models"):  # some connections bring no request
                over.set()

    def end() -> None:
        assert over.wait(4), "the connection is kept"

    with answering(Ready) as web:
        fleet.serving.stack.callback(end)
        fleet.router.fill("a1", replace(fleet.serving.servers[0].ports, http=web.server_port))
        fleet.router.weigh("a1", 100)
        with closing(HTTPConnection(fleet.router.ports.http_url)) as client:
            client.request("GET", "/v2/models/recommend/ready")
            assert client.getresponse().status == 200 and not over.is_set()
        fleet.close()


@pytest.mark.parametrize("first", ["serving", "coming"])
def test_a_server_that_gives_up_ends_no_other(fleet: Fleet, first: str) -> None:
    """Users of the others would pay for it, in a rollout those of the old artifact for the new one."""
    assert fleet.coming
    both = [fleet.serving.servers[0].supervisor, fleet.coming.servers[0].supervisor]
    for supervisor in both if first == "serving" else both[::-1]:
        fleet.check()
        supervisor.error = RouterError("three starts failed")
    with pytest.raises(RouterError, match="three starts failed"):
        fleet.check()
