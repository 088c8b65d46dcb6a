"""Moves of a fleet: who has the users at every moment, what is told, and what undoes them. The router is a real one."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.launcher import RunningServer
from deploy.ports import Ports, choose_ports
from deploy.router import fleet as fleets
from deploy.router.fleet import STATE, Fleet
from deploy.router.haproxy import RouterError
from genrec.errors import InputError
from tests.deploy.conftest import NEW, OLD
from tests.serving.processes import until
from tests.web import Quiet, answering

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


def test_what_a_person_may_do_is_said_in_options_of_the_command(fleet: Fleet) -> None:
    with pytest.raises(InputError, match="--undo of it first"):
        fleet.move(Path("third"), 50)
    fleet.coming = None
    with pytest.raises(InputError, match=r"undo: of new, which has no servers here"):
        fleet.move(NEW, 0)


@pytest.mark.parametrize("share", [100, 0])
def test_at_no_moment_of_a_move_nobody_has_users(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    now, weigh = {"a1": share, "b1": 100 - share}, fleet.router.weigh

    def weighed(place: str, weight: int) -> None:
        weigh(place, weight)
        now[place] = weight
        assert any(now.values())

    monkeypatch.setattr(fleet.router, "weigh", weighed)
    fleet.move(NEW, share)
    assert now == {"a1": 100 - share, "b1": share}


@pytest.mark.parametrize("share", [100, 60])
def test_no_user_goes_to_new_servers_that_have_given_up(fleet: Fleet, ended: list[Path], share: int) -> None:
    """As some time after a first share. The old ones would be ended for them."""
    assert fleet.coming
    fleet.coming.servers[0].supervisor.error = RouterError("three starts failed")
    told: list[str] = []
    with pytest.raises(RouterError, match="three starts failed"):
        fleet.move(NEW, share, told.append)
    assert ended == [NEW] and fleet.coming is None and fleet.share == 0 and not told


@pytest.mark.parametrize("share", [100, 60])
def test_no_user_stays_with_new_servers_that_do_not_answer(
    fleet: Fleet, ended: list[Path], share: int
) -> None:
    """They are being started again: from before the move, or, where all users are theirs, since then."""
    assert fleet.coming
    supervisor, told = fleet.coming.servers[0].supervisor, list[str]()

    def tell(text: str) -> None:
        told.append(text)
        supervisor.prefix = "genrec-1-"

    if share < 100:
        tell("before")
    with pytest.raises(InputError, match="new: has a server that does not answer"):
        fleet.move(NEW, share, tell)
    assert ended == [NEW] and fleet.serving.artifact == OLD and fleet.coming is None
    assert not any("ending" in each for each in told) and len(told) == (1 if share < 100 else 3)


def test_who_goes_away_while_the_old_servers_give_their_last_answers_undoes_it(
    fleet: Fleet, ended: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C of the command: it is heard of when the next word is said to it."""
    told, weights = list[str](), dict[str, int]()
    monkeypatch.setattr(fleet.router, "weigh", weights.__setitem__)

    def tell(text: str) -> None:
        if any("last answers" in each for each in told):
            raise BrokenPipeError
        told.append(text)

    with pytest.raises(BrokenPipeError):
        fleet.move(NEW, 100, tell)
    assert ended == [NEW] and fleet.serving.artifact == OLD and fleet.coming is None
    assert weights == {"a1": 100, "b1": 0}


@pytest.mark.parametrize(("share", "place", "over"), [(100, "a1", OLD), (0, "b1", NEW)])
def test_servers_end_behind_their_last_answers(
    fleet: Fleet, ended: list[Path], monkeypatch: pytest.MonkeyPatch, share: int, place: str, over: Path
) -> None:
    """Those of a rollout that is undone too."""
    asked: list[tuple[list[str], list[Path]]] = []  # of whom, and who had ended by then

    def busy(places: tuple[str, ...]) -> int:
        asked.append(([*places], [*ended]))
        return 3 - len(asked)

    monkeypatch.setattr(fleet.router, "busy", busy)
    fleet.move(NEW, share)
    assert asked == [([place], [])] * 3 and ended == [over]


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
    at = fleet.router.ports
    urls = [at.http_url, at.grpc_url]
    assert state(fleet) == {"serving": str(NEW), "coming": "", "share": 0, "at": urls}


def test_the_new_artifact_is_known_as_served_though_that_could_not_be_written_at_once(fleet: Fleet) -> None:
    """As in a full /dev/shm."""
    in_its_way = fleet.router.folder / f"{STATE}.partial"

    def tell(text: str) -> None:
        if text.startswith("ending"):
            in_its_way.mkdir()

    with pytest.raises(OSError):
        fleet.move(NEW, 100, tell)
    in_its_way.rmdir()
    fleet.check()
    assert state(fleet)["serving"] == str(NEW)


def test_the_share_is_known_while_the_old_servers_give_their_last_answers(fleet: Fleet) -> None:
    shares: list[object] = []
    fleet.move(NEW, 30)
    fleet.move(NEW, 100, lambda _: shares.append(state(fleet)["share"]))
    assert shares == [30, 100, 100, 100]


def test_new_servers_must_serve_what_is_served(fleet: Fleet) -> None:
    other = RunningServer(choose_ports(), "", Path(), None, ("rank",), "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"new: does not serve recommend \(accepted: recommend\)"):
        fleet._check_ensembles(other)


@pytest.fixture
def busy(fleet: Fleet) -> Iterator[Fleet]:
    """The old server is ready, and works on a request that it does not answer."""
    answer = threading.Event()

    class Handler(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            answer.wait()
            self.do_GET()

    router, url = fleet.router, f"http://{fleet.router.ports.http_url}/v2"

    def ready() -> bool:
        with suppress(OSError):  # the router has not looked yet
            return urllib.request.urlopen(f"{url}/health/ready", timeout=30).status == 200
        return False

    with answering(Handler) as http, ThreadPoolExecutor() as pool:
        router.fill("a1", Ports(http.server_port, http.server_port, http.server_port))
        router.weigh("a1", 100)
        try:
            until(ready)
            asked = pool.submit(urllib.request.urlopen, f"{url}/models/recommend/infer", b"{}", 60)
            until(lambda: router.busy(["a1"]) or asked.done())
            yield fleet
        finally:
            answer.set()


def test_who_is_still_busy_is_not_waited_for_without_end(
    busy: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleets, "DRAIN_S", -1.0)
    with caplog.at_level(logging.WARNING):
        busy._drain(busy.serving, str)
    assert "there is still work in old" in caplog.text
