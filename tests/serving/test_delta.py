"""Deltas of an HSTU ranker, taken in by a server under load: every answer is torch's with the weights that it names."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from clients.rank_wire import Ranking
from clients.ranker import Ranker
from deploy.launcher import RunningServer
from export.hstu_delta import export_delta
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.rank import deltas
from tests.oracles.hstu_asked import Asked, logits_of
from tests.oracles.hstu_further import changed_further
from tests.serving.loaded import UnderLoad
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

pytestmark = pytest.mark.serving
USERS, CANDIDATES = 6, range(40, 140)


class World:
    """An artifact of its own, what some users ask, and the answers of every delta's weights by torch."""

    def __init__(self, artifact: Path) -> None:
        self.artifact = artifact
        self.ids = Catalogue.load(artifact / "catalogue.parquet").item_ids
        self.expected: dict[tuple[int, int], np.ndarray] = {}
        self.add(0, load_hstu(artifact / "model"))

    def add(self, delta: int, model: HstuRanker) -> None:
        """What the weights answer that are served with a delta; they must differ from all others."""
        for user in range(USERS):
            asked = Asked(range(user, user + 9), [1 + user % 5] * 9, [0] * 9, 0, [1 + user])
            self.expected[delta, user] = logits_of(model, asked, CANDIDATES)[:, 0]
            for former in range(delta):
                assert np.abs(self.expected[former, user] - self.expected[delta, user]).max() > 0.01

    def asked(self, user: int) -> dict[str, Any]:
        """Arguments of a client."""
        known = {"ratings": [1 + user % 5] * 9, "features": [1 + user], "user_id": user}
        ids = self.ids
        return {
            "history": ids[user : user + 9],
            "candidates": ids[CANDIDATES],
            "top_k": len(CANDIDATES),
            **known,
        }

    def wrong(self, user: int, answer: Ranking) -> bool:
        """Whether it is not all of one delta's."""
        scores = dict(zip(answer.item_ids.tolist(), answer.scores.tolist(), strict=True))
        found = np.array([scores[item] for item in self.ids[CANDIDATES].tolist()])
        return not np.allclose(found, self.expected[answer.delta, user], atol=1e-4)


class Load(UnderLoad):
    """Clients of both protocols: which deltas answered, whose KV was reused, and whatever was not right.

    Half of the users have a signal each time: they are computed ahead while deltas come.
    """

    def __init__(self, world: World, server: RunningServer) -> None:
        self.deltas: Counter[int] = Counter()
        self.reused: Counter[int] = Counter()
        self.signals: Counter[str] = Counter()
        self.problems: list[object] = []
        self._world = world
        urls: list[tuple[Any, str]] = [("grpc", server.grpc_url), ("http", server.http_url)]
        super().__init__(*(partial(self._ask, *each) for each in urls))

    def _ask(self, protocol: Any, url: str) -> None:
        newest, number = 0, 0
        with Ranker(url, protocol) as ranker:
            while self.goes_on():
                number += 1
                user = number % USERS
                asked = self._world.asked(user)
                try:
                    if number % 2:
                        past = {name: asked[name] for name in ("history", "ratings", "features", "user_id")}
                        self.signals[ranker.pre_infer(**past, deadline_ms=10_000).outcome] += 1
                    answer = ranker.rank(**asked)
                    if self._world.wrong(user, answer) or answer.delta < newest:
                        self.problems.append((user, newest, answer))
                    newest = answer.delta
                    self.deltas[newest] += 1
                    self.reused[newest] += answer.user_reused > 0
                except Exception as error:
                    self.problems.append(error)

    def seen(self, delta: int) -> bool:
        """Whether the delta has answered from KV of its own too, or something went wrong."""
        return self.reused[delta] > USERS or bool(self.problems)


@pytest.fixture(scope="module")
def world(tiny_hstu: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(Path(shutil.copytree(tiny_hstu, tmp_path_factory.mktemp("delta") / "artifact")))


@pytest.fixture(scope="module")
def served(world: World) -> Iterator[RunningServer]:
    ahead: dict[str, Any] = {"ensembles": ("rank", "pre_infer"), "pre_infer_risk": 0, "pre_infer_share": 100}
    with brief_server(world.artifact, beam_width=16, **ahead) as running:
        yield running


def further(world: World, number: int, dense: bool = True) -> None:
    """The next delta, and what is to be answered with it."""
    world.add(number, changed_further(world.artifact, number, dense=dense))
    written = export_delta(world.artifact)
    assert written is not None and written.number == number


def metric(server: RunningServer, name: str) -> float:
    with urlopen(f"http://{server.metrics_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def test_deltas_under_load_lose_nothing_and_mix_nothing(world: World, served: RunningServer) -> None:
    with Load(world, served) as load:
        until(lambda: load.seen(0))
        for number, dense in ((1, True), (2, False)):
            further(world, number, dense)
            until(lambda number=number: load.seen(number))
    assert load.problems == [] and served.restarts == 0
    assert load.signals["admitted"] >= 3 and load.signals["ready"], "each delta's users anew"
    until(lambda: metric(served, "genrec_model_delta") == 2 and metric(served, "genrec_deltas_total") == 2)


def test_a_damaged_delta_is_refused_and_what_served_goes_on(world: World, served: RunningServer) -> None:
    scratch = Path(shutil.copytree(world.artifact, world.artifact.parent / "scratch"))
    model = changed_further(scratch, 3)
    export_delta(scratch)
    path = deltas.folder_of(scratch, 3) / deltas.FILE
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with Load(world, served) as load:
        deltas.folder_of(scratch, 3).rename(deltas.folder_of(world.artifact, 3))
        until(lambda: metric(served, "genrec_delta_refusals_total") == 1)
        load.reused.clear()
        until(lambda: load.seen(2))
        # One in its place is tried again.
        world.add(3, model)
        shutil.copytree(world.artifact / "deltas" / "3", scratch / "deltas" / "3")
        path.write_bytes(good)
        shutil.rmtree(world.artifact / "deltas" / "3")
        deltas.folder_of(scratch, 3).rename(deltas.folder_of(world.artifact, 3))
        until(lambda: load.seen(3))
    assert load.problems == [] and set(load.deltas) == {2, 3} and served.restarts == 0
    file = deltas.folder_of(world.artifact, 3) / deltas.FILE
    log = (served.run_dir / "server.log").read_text()
    assert f"delta 3 is refused, delta 2 goes on: {file}: is not the file that stage `delta` made" in log


def test_a_restart_has_all_deltas_in_their_order(world: World, served: RunningServer) -> None:
    restarts = served.restarts
    os.kill(stub_of(served.pid, "score_candidates"), signal.SIGKILL)
    until(lambda: served.restarts > restarts)
    with Load(world, served) as load:
        until(lambda: load.seen(3))
    assert load.problems == [] and set(load.deltas) == {3}
