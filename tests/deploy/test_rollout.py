"""From one generator to another behind the router, under load: nothing lost, nothing mixed, undone where it must be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from clients.recommender import Recommender
from clients.wire import Recommendation
from deploy.router import haproxy
from deploy.router.route import folder_of, rollout
from ensembles.local import LocalRecommender
from genrec import leftovers
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import catalogue_id
from genrec.errors import GenrecError, InputError
from tests.deploy.prometheus import scrape
from tests.serving.loaded import UnderLoad
from tests.serving.processes import until
from tests.tiny import other_generator

pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy"),
]
ROOT = Path(__file__).resolve().parents[2]
WIDTH, TOP_K = 32, 10
ROUTE = """
import sys
from pathlib import Path
from deploy import supervisor
from deploy.router.limits import Limits
from deploy.router.route import route
supervisor.GRACE_S = 0.0  # a server waits for seconds until its router closes connections that it keeps
limits, targets = Limits(64, 64, 5000), Path(sys.argv[2])
route(Path(sys.argv[1]), 1, limits, grpc_port=None, targets=targets, beam_width=32, ensembles=("recommend",))
"""
Answers = list[tuple[np.ndarray, np.ndarray]]


class World:
    """Two artifacts that answer differently, and what each of them answers."""

    def __init__(self, old: Path, new: Path) -> None:
        self.old, self.new = old, new
        both = set(map(int, Catalogue.load(old / "catalogue.parquet").item_ids))
        items = sorted(both & set(map(int, Catalogue.load(new / "catalogue.parquet").item_ids)))
        self.histories = [items[n : n + 1 + n % 12] for n in range(0, 48, 4)]
        self.expected = {artifact: self._answers(artifact) for artifact in (old, new)}

    def _answers(self, artifact: Path) -> Answers:
        with LocalRecommender(artifact, WIDTH) as local:
            found = local.recommend(self.histories, TOP_K)
        assert not any(isinstance(each, GenrecError) for each in found)
        return [(each["item_ids"][0], each["scores"][0]) for each in found]

    def whose(self, place: int, answer: Recommendation) -> str:
        for name, artifact in (("old", self.old), ("new", self.new)):
            items, scores = self.expected[artifact][place]
            if np.array_equal(answer.item_ids, items) and np.array_equal(answer.scores, scores):
                return name
        return "mixed"


@pytest.fixture(scope="module")
def world(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("rollout")
    new = other_generator(shutil.copytree(tiny, folder / "new"), seed=1)
    found = World(shutil.copytree(tiny, folder / "old"), new)
    for (one, _), (other, _) in zip(*found.expected.values(), strict=True):
        assert not np.array_equal(one, other)
    return found


class Routed:
    """`genrec route` in a process of its own."""

    def __init__(self, artifact: Path, folder: Path) -> None:
        self._out, self.targets = folder / "stdout", folder / "targets.json"
        with self._out.open("wb") as stdout:
            command = [sys.executable, "-c", ROUTE, artifact, self.targets]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=stdout, start_new_session=True)
        until(lambda: "Ctrl-C" in self._out.read_text() or self.process.poll() is not None)
        _, self.http_url, _, self.grpc_url, *_ = self._out.read_text().split()

    def shm(self) -> list[Path]:
        return list(leftovers.SHM.glob(f"genrec-*-{self.process.pid}-*"))


@pytest.fixture(scope="module")
def routed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    running = Routed(world.old, tmp_path_factory.mktemp("route"))
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert running.shm() == [] and json.loads(running.targets.read_text()) == []


class Load(UnderLoad):
    """Clients that ask all the time: who answered since the last look, and whatever was not right."""

    def __init__(self, world: World, routed: Routed) -> None:
        self.whose: Counter[str] = Counter()
        self.problems: list[object] = []
        self._world = world
        kinds = (("grpc", routed.grpc_url), ("http", routed.http_url))
        super().__init__(*(partial(self._ask, number, *kinds[number % 2]) for number in range(4)))

    def _ask(self, user: int, protocol: str, url: str) -> None:
        with Recommender(url, protocol) as recommender:
            while self.goes_on():
                user += 4
                place = user % len(self._world.histories)
                try:
                    answer = recommender.recommend(self._world.histories[place], TOP_K, user_id=user % 64)
                    self.whose[self._world.whose(place, answer)] += 1
                except Exception as error:
                    self.problems.append(error)

    def look(self, count: int = 100) -> set[str]:
        """Who answers so many requests from now on."""
        self.whose.clear()
        until(lambda: sum(self.whose.values()) >= count or self.problems)
        return set(self.whose)


@pytest.mark.long
def test_shares_undo_and_the_whole_way_lose_nothing_and_mix_nothing(world: World, routed: Routed) -> None:
    told: list[str] = []
    with Load(world, routed) as load:
        assert load.look() == {"old"}
        assert "50 % of the users" in rollout(world.old, world.new, 50, told.append)
        assert load.look() == {"old", "new"}
        assert rollout(world.old, world.new, 0, told.append) == f"{world.old} serves"
        assert load.look() == {"old"}
        assert rollout(world.old, world.new, 100, told.append) == f"{world.new} serves"
        assert load.look() == {"new"}
        assert rollout(world.new, world.old, 100, told.append) == f"{world.old} serves"
        assert load.look() == {"old"}
    assert load.problems == []
    assert told[0] == f"starting server 1 of 1 with {world.new}"


def test_every_target_of_prometheus_has_metrics(world: World, routed: Routed) -> None:
    groups = json.loads(routed.targets.read_text())
    assert groups[1]["labels"]["catalogue"] == catalogue_id(world.old)
    of_router, of_server = ({each.name for each in scrape(group["targets"][0])} for group in groups)
    assert "haproxy_process_uptime_seconds" in of_router and "nv_inference_count" in of_server


def test_a_damaged_artifact_is_refused_before_a_request_sees_it(
    world: World, routed: Routed, tmp_path: Path
) -> None:
    broken = shutil.copytree(world.new, tmp_path / "broken")
    kept = [path for path in (broken / "engines").rglob("*.*") if "cache" not in path.parts]
    weights = max(kept, key=lambda path: path.stat().st_size)
    with weights.open("r+b") as file:
        file.write(b"\xff\xff\xff\xff")
    before = set(routed.shm())
    with Load(world, routed) as load:
        with pytest.raises(GenrecError, match=str(weights)):
            rollout(world.old, broken, 100, str)
        assert load.look() == {"old"}
    assert load.problems == [] and set(routed.shm()) == before


@pytest.mark.long
def test_a_caller_that_goes_away_undoes_its_rollout(world: World, routed: Routed) -> None:
    before = set(routed.shm())
    with Load(world, routed) as load:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder_of(world.old) / "control"))
            connection.sendall(f'{{"old": "{world.old}", "new": "{world.new}", "share": 100}}\n'.encode())
            assert b"starting server 1" in connection.recv(4096)
        assert load.look(300) == {"old"}
        with pytest.raises(GenrecError, match="has no servers here"):  # it waits for the other to be done
            rollout(world.old, world.new, 0, str)
        assert load.look() == {"old"}
    assert load.problems == [] and set(routed.shm()) == before


@pytest.mark.parametrize(
    ("which", "share", "says"),
    [("old", 100, "is served already"), ("new", 101, "0 to 100"), ("nowhere", 100, "nowhere")],
)
def test_what_cannot_be_done_is_named(
    world: World, routed: Routed, tmp_path: Path, which: str, share: int, says: str
) -> None:
    new = {"old": world.old, "new": world.new, "nowhere": tmp_path / "nowhere"}[which]
    with pytest.raises(GenrecError, match=says):
        rollout(world.old, new, share, str)


def test_an_artifact_that_nobody_serves_is_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"old: {tmp_path} is served by no router here"):
        rollout(tmp_path, world.new, 100, str)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_router_that_ended_or_hangs_is_started_again_and_has_the_same_servers(
    world: World, routed: Routed, how: signal.Signals
) -> None:
    before, killed = set(routed.shm()), settled(child_of(routed.process.pid, "haproxy"))
    os.kill(killed, how)
    until(lambda: child_of(routed.process.pid, "haproxy", killed))
    for url, protocol in zip((routed.grpc_url, routed.http_url), ("grpc", "http"), strict=True):
        # Each has health checks of its own.
        until(lambda url=url, protocol=protocol: answered(url, protocol, world))
    with Load(world, routed) as load:
        assert load.look() == {"old"}
    assert load.problems == [] and set(routed.shm()) == before


@pytest.mark.long
def test_a_router_that_cannot_live_takes_all_along(world: World, tmp_path: Path) -> None:
    """HAProxy killed as soon as it is started again: the command says so and leaves nothing behind."""
    running = Routed(world.old, tmp_path)
    first = settled(child_of(running.process.pid, "haproxy"))
    os.kill(first, signal.SIGKILL)
    until(lambda: child_of(running.process.pid, "haproxy", first))
    os.kill(child_of(running.process.pid, "haproxy", first), signal.SIGKILL)
    assert running.process.wait(60) != 0
    assert running.shm() == []


def answered(url: str, protocol: str, world: World) -> bool:
    with Recommender(url, protocol) as recommender:
        try:
            return len(recommender.recommend(world.histories[0], TOP_K).item_ids) == TOP_K
        except GenrecError:
            return False


def settled(pid: int) -> int:
    """The process, once it has lived so long that it would be started again."""
    begun = psutil.Process(pid).create_time()
    until(lambda: time.time() > begun + haproxy.SETTLED_S + 1)
    return pid


def child_of(pid: int, name: str, but: int = 0) -> int:
    """The process of this name that `pid` has started; with `but` another one, 0 as long as there is none."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if head.endswith(f"({name}") and int(tail.split()[1]) == pid and int(entry.name) != but:
            return int(entry.name)
    assert but, f"{pid} has no child {name}"
    return 0
