"""A fleet whose router or servers fail under it: what it ends, and what it says. The router is a real one."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.launcher import RunningServer
from deploy.ports import Ports, choose_ports
from deploy.router import fleet as fleets
from deploy.router.config import ServerPlace
from deploy.router.fleet import STATE, Fleet, Generation
from deploy.router.haproxy import CONFIG, SETTLED_S, Router, RouterError, running_router
from deploy.router.limits import Limits
from genrec.errors import InputError
from tests.serving.processes import until

OLD, NEW = Path("old"), Path("new")
pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


@pytest.fixture
def router() -> Iterator[Router]:
    with running_router([ServerPlace("a1"), ServerPlace("b1")], 1, Limits(), choose_ports()) as running:
        yield running


def generation(artifact: Path, place: str, ended: list[Path]) -> Generation:
    """One server that nobody asks; it says when it is ended."""
    watched = SimpleNamespace(error=None, stop=lambda wait: None)
    server = RunningServer(choose_ports(), "", Path(), watched, ("recommend",), "")  # type: ignore[arg-type]
    stack = ExitStack()
    stack.callback(ended.append, artifact)
    return Generation(artifact, (place,), [server], stack, f"catalogue of {artifact}")


@pytest.fixture
def ended() -> list[Path]:
    return []


@pytest.fixture
def fleet(router: Router, ended: list[Path], tmp_path: Path) -> Fleet:
    """On its way from OLD to NEW."""
    made = Fleet(router, (("a1",), ("b1",)), {}, tmp_path / "targets.json")
    made.serving, made.coming = generation(OLD, "a1", ended), generation(NEW, "b1", ended)
    return made


def end_for_good(router: Router) -> None:
    (router.folder / CONFIG).unlink()  # or it would be started again
    router.process.kill()
    router.process.wait()


def test_what_a_person_may_do_is_said_in_options_of_the_command(fleet: Fleet) -> None:
    with pytest.raises(InputError, match="--undo of it first"):
        fleet.move(Path("third"), 50)
    fleet.coming = None
    with pytest.raises(InputError, match=r"undo: of new, which has no servers here"):
        fleet.move(NEW, 0)


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
    until(lambda: time.monotonic() > fleet.router.started + SETTLED_S)

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


def test_a_router_is_started_again_though_nothing_can_be_written_of_it(fleet: Fleet) -> None:
    """As in a full /dev/shm. What is served has not changed, so there is nothing to write: the same servers have the
    same shares of the users.
    """
    fleet.share = 30
    (fleet.router.folder / f"{STATE}.partial").mkdir()  # in the way of the file
    first = fleet.router.process
    until(lambda: time.monotonic() > fleet.router.started + SETTLED_S)
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


@pytest.mark.parametrize("share", [100, 60])
def test_no_user_goes_to_new_servers_that_have_given_up(fleet: Fleet, ended: list[Path], share: int) -> None:
    """As some time after a first share. The old ones would be ended for them."""
    assert fleet.coming
    fleet.coming.servers[0].supervisor.error = RouterError("three starts failed")
    told: list[str] = []
    with pytest.raises(RouterError, match="three starts failed"):
        fleet.move(NEW, share, told.append)
    assert ended == [NEW] and fleet.coming is None and fleet.share == 0 and not told


def test_who_goes_away_while_the_old_servers_give_their_last_answers_undoes_it(
    fleet: Fleet, ended: list[Path]
) -> None:
    """Ctrl-C of the command: it is heard of when the next word is said to it."""
    told: list[str] = []

    def tell(text: str) -> None:
        if any("last answers" in each for each in told):
            raise BrokenPipeError
        told.append(text)

    with pytest.raises(BrokenPipeError):
        fleet.move(NEW, 100, tell)
    assert ended == [NEW] and fleet.serving.artifact == OLD and fleet.coming is None


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


def state(fleet: Fleet) -> dict[str, object]:
    found: dict[str, object] = json.loads((fleet.router.folder / STATE).read_text())
    return found


def test_the_new_artifact_is_known_as_served_though_the_old_servers_do_not_end(fleet: Fleet) -> None:
    """Or no rollout would find the router of what it serves."""

    def never() -> None:
        raise TimeoutError("old does not end")

    fleet.serving.stack.callback(never)
    with pytest.raises(TimeoutError, match="old does not end"):
        fleet.move(NEW, 100)
    assert state(fleet) == {"serving": str(NEW), "coming": "", "share": 0}


def test_the_share_is_known_while_the_old_servers_give_their_last_answers(fleet: Fleet) -> None:
    shares: list[object] = []
    fleet.move(NEW, 30)
    fleet.move(NEW, 100, lambda _: shares.append(state(fleet)["share"]))
    assert shares == [30, 100, 100, 100]


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


def test_new_servers_must_serve_what_is_served(fleet: Fleet) -> None:
    other = RunningServer(choose_ports(), "", Path(), None, ("rank",), "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"new: does not serve recommend \(accepted: recommend\)"):
        fleet._check_ensembles(other)


@pytest.fixture
def busy(fleet: Fleet) -> Iterator[Fleet]:
    """The old server is ready, and works on a request that it does not answer."""
    answer = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            answer.wait()
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    router, url = fleet.router, f"http://{fleet.router.ports.http_url}/v2"

    def ready() -> bool:
        with suppress(OSError):  # the router has not looked yet
            return urllib.request.urlopen(f"{url}/health/ready", timeout=30).status == 200
        return False

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http, ThreadPoolExecutor() as pool:
        pool.submit(http.serve_forever)
        router.fill("a1", Ports(http.server_port, http.server_port, http.server_port))
        router.weigh("a1", 100)
        try:
            until(ready)
            asked = pool.submit(urllib.request.urlopen, f"{url}/models/recommend/infer", b"{}", 60)
            until(lambda: router.busy(["a1"]) or asked.done())
            yield fleet
        finally:
            answer.set()
            http.shutdown()


def test_who_is_still_busy_is_not_waited_for_without_end(
    busy: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleets, "DRAIN_S", -1.0)
    with caplog.at_level(logging.WARNING):
        busy._drain(busy.serving, str)
    assert "there is still work in old" in caplog.text
