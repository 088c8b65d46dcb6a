"""What `genrec rollout` says of a router that does not answer to the end, and which fleets there may be."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import main
from deploy.launch import MORE_TIME
from deploy.ports import choose_ports
from deploy.router import fleet as fleets
from deploy.router import route as routes
from deploy.router.fleet import STATE
from deploy.router.haproxy import FOLDER
from deploy.router.limits import MOST_SERVERS, Limits
from deploy.router.route import CONTROL, RolloutFailed, obey, rollout
from genrec import leftovers
from genrec.errors import GenrecError, InputError
from tests.serving.processes import until

SERVED = Path("/served")


class Obedient:
    """A fleet without servers, which goes where it is told at once."""

    def __init__(self, folder: Path) -> None:
        self.router = SimpleNamespace(folder=folder)
        self.serving, self.coming, self.share = SimpleNamespace(artifact=SERVED), None, 0
        self.over, self.fault = threading.Event(), ""

    def check(self) -> None:
        if self.over.is_set():
            raise GenrecError("over")

    def move(self, artifact: Path, share: int, tell: Callable[[str], None]) -> None:
        if self.fault:
            raise RuntimeError(self.fault)
        tell(f"{share} % to {artifact}")
        self.serving = SimpleNamespace(artifact=artifact)


@contextmanager
def obeying() -> Iterator[Obedient]:
    """One that is asked, and says all the time that it serves what it did at first, as to one who asked then."""
    prefix = leftovers.own_prefix()
    fleet = Obedient(leftovers.SHM / f"{prefix}{FOLDER}")
    fleet.router.folder.mkdir(mode=0o700)
    (fleet.router.folder / STATE).write_text(json.dumps({"serving": str(SERVED)}))
    try:
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(obey, fleet)
            until(lambda: (fleet.router.folder / CONTROL).exists() or ended.done())
            try:
                yield fleet
            finally:
                fleet.over.set()
        assert str(ended.exception()) == "over"
    finally:
        leftovers.remove(prefix)


def test_of_two_rollouts_at_once_the_second_does_not_replace_what_the_first_has_put_there() -> None:
    """It waited for the first to be done, and is from what is served no more."""
    with obeying() as fleet:
        assert rollout(SERVED, Path("/new"), 100, str) == "/new serves"
        with pytest.raises(RolloutFailed, match=r"old: is /served, which .* \(accepted: /new\)"):
            rollout(SERVED, Path("/other"), 100, str)
        assert fleet.serving.artifact == Path("/new")


def test_a_fleet_hears_again_where_its_socket_was_removed() -> None:
    """As by systemd-logind when its user logs out."""
    with obeying() as fleet:
        (fleet.router.folder / CONTROL).unlink()
        until((fleet.router.folder / CONTROL).exists)
        assert rollout(SERVED, Path("/new"), 100, str) == "/new serves"


def test_whatever_is_wrong_with_a_rollout_the_fleet_goes_on() -> None:
    with obeying() as fleet:
        for asked in (b"[" * 100_000, b'{"old": "/served", "new": "/new", "share": 1e999}'):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(fleet.router.folder / CONTROL))
                connection.sendall(asked + b"\n")
                assert b'{"error": ' in connection.recv(4096)
        fleet.fault = "can't start new thread"
        with pytest.raises(RolloutFailed, match="RuntimeError: can't start new thread"):
            rollout(SERVED, Path("/new"), 100, str)
        fleet.fault = ""
        assert rollout(SERVED, Path("/new"), 100, str) == "/new serves"


@pytest.mark.parametrize(
    ("last", "says"),
    [(b"", "/served: its router has ended"), (b'{"error": "new: is damaged"}\n', "new: is damaged")],
)
def test_a_rollout_that_fails_says_why(last: bytes, says: str) -> None:
    prefix, told = leftovers.own_prefix(), []
    folder = leftovers.SHM / f"{prefix}{FOLDER}"
    folder.mkdir(mode=0o700)
    (folder / STATE).write_text(json.dumps({"serving": str(SERVED)}))

    def answer() -> str:
        """As a router that ends after `last`."""
        connection, _ = listening.accept()
        with connection, connection.makefile("r") as lines:
            asked = lines.readline()
            connection.sendall(b'{"told": "starting"}\n' + last)
        return asked

    try:
        with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor() as pool:
            listening.bind(str(folder / CONTROL))
            listening.listen()
            answered = pool.submit(answer)
            with pytest.raises(RolloutFailed, match=says):
                rollout(SERVED, Path("/new"), 100, told.append)
            assert json.loads(answered.result()) == {"old": "/served", "new": "/new", "share": 100}
    finally:
        leftovers.remove(prefix)
    assert told == ["starting"]


@pytest.mark.parametrize("heard", ["not yet", "no more", "never"])
def test_a_router_that_starts_or_ends_is_said_to_do_so(heard: str) -> None:
    """Ending its servers takes it seconds. Its socket is there still, and who waits there is not heard any more."""
    prefix = leftovers.own_prefix()
    folder = leftovers.SHM / f"{prefix}{FOLDER}"
    folder.mkdir(mode=0o700)
    (folder / STATE).write_text(json.dumps({"serving": str(SERVED)}))
    try:
        with ThreadPoolExecutor(1) as pool:
            with socket.socket(socket.AF_UNIX) as listening:
                if heard != "not yet":
                    listening.bind(str(folder / CONTROL))
                if heard == "never":
                    listening.listen()
                    waits = pool.submit(rollout, SERVED, Path("/new"), 100, str)
                    with listening.accept()[0] as connection:
                        select.select([connection], [], [])
            if heard != "never":
                waits = pool.submit(rollout, SERVED, Path("/new"), 100, str)
            said = str(waits.exception())
        assert said == "/served: its router has just begun, or is ending"
    finally:
        leftovers.remove(prefix)


@pytest.fixture
def several() -> Iterator[list[Path]]:
    """Folders of two routers that serve the same; none is there to be asked."""
    prefix = leftovers.own_prefix()
    folders = [leftovers.SHM / f"{prefix}{n}-{FOLDER}" for n in range(2)]
    for n, folder in enumerate(folders):
        folder.mkdir(mode=0o700)
        about = {"serving": str(SERVED), "at": [f"127.0.0.1:{n}0", f"127.0.0.1:{n}1"]}
        (folder / STATE).write_text(json.dumps(about))
    yield folders
    leftovers.remove(prefix)


def test_of_two_routers_that_serve_the_same_none_is_chosen_for_its_caller(
    several: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one's users would have gone to the new artifact."""
    assert main(["rollout", str(SERVED), "/new"]) == 2
    said = "served by 2 routers here (accepted: one of them, with --router 127.0.0.1:00 or 127.0.0.1:10)"
    assert said in capsys.readouterr().err
    for n, folder in enumerate(several):
        assert {routes.folder_of(SERVED, f"127.0.0.1:{n}{port}") for port in range(2)} == {folder}
    assert main(["rollout", str(SERVED), "/new", "--router", "127.0.0.1:5"]) == 2
    said = "router: is 127.0.0.1:5, where nobody serves /served (accepted: 127.0.0.1:00 or 127.0.0.1:10)"
    assert said in capsys.readouterr().err


def test_several_nodes_are_not_put_behind_one_router(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All its servers would be the same node."""
    options = ["--nodes", "2", "--store", "127.0.0.1:1", "--store-host", "127.0.0.1:2"]
    assert main(["route", str(tiny), *options]) == 2
    assert "nodes: is 2 behind one router (accepted: 1: its servers" in capsys.readouterr().err


def test_servers_of_a_router_may_be_given_more_time_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of one that took too long advises."""
    given: list[float] = []
    monkeypatch.setattr(routes, "route", lambda *_, **options: given.append(options["start_timeout_s"]))
    assert main(["route", str(tmp_path)]) == main(["route", str(tmp_path), "--start-timeout-s", "300"]) == 0
    assert given == [120, 300] and "`genrec route`" in MORE_TIME


@pytest.mark.parametrize("name", ["in_flight", "waiting", "wait_ms"])
def test_limits_of_the_router_have_limits(name: str) -> None:
    """HAProxy takes a 0 for no limit at all."""
    most = next(each.metadata["most"] for each in fields(Limits) if each.name == name)
    for value in (1, most):
        assert getattr(Limits(**{name: value}), name) == value
    for value in (0, -1, most + 1):
        with pytest.raises(InputError, match=rf"{name}: is {value} \(accepted: 1 to {most}\)"):
            Limits(**{name: value})


@pytest.mark.parametrize("servers", [0, MOST_SERVERS + 1])
def test_a_fleet_of_no_servers_or_too_many_is_refused_before_a_router_starts(
    servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "running_router", lambda *_: pytest.fail("starts a router"))
    with (
        pytest.raises(InputError, match=rf"servers: is {servers} \(accepted: 1 to {MOST_SERVERS}\)"),
        fleets.running_fleet(SERVED, servers, Limits(), choose_ports()),
    ):
        pass
