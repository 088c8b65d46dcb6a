"""Catalogue versions change while rankings run: every answer is the local runtime's for the version it reports."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.catalogue import add_items, remove_items
from clients.rank_wire import Ranking
from clients.ranker import Ranker
from deploy import switch as switching
from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from tests.serving.loaded import UnderLoad
from tests.serving.processes import until
from tests.serving.servers import brief_server

WIDTH, TOP_K, NEW = 16, 8, 5_000_000
Asked = list[tuple[list[int], list[int]]]


class World:
    """Version 2 has lost every third item, so rows are others, and 3 has one more; and what each answers."""

    def __init__(self, artifact: Path, scratch: Path) -> None:
        self.artifact = artifact
        first = Catalogue.load(artifact / "catalogue.parquet")
        ids = first.item_ids.tolist()
        self.asked: Asked = [(ids[n : n + 2 + n], [*ids[20 * n : 20 * n + 30], NEW]) for n in range(8)]
        remove_items(artifact, np.array(ids[1::3]))
        codes = ",".join(map(str, first.codes[0]))
        (scratch / "new.csv").write_text(f"item,title,code_1,code_2,code_3\n{NEW},new,{codes}\n")
        add_items(artifact, scratch / "new.csv")
        self.want = {version: self._answers(version) for version in (1, 2, 3)}
        switching.switch(artifact, 1)

    def _answers(self, version: int) -> list[Any]:
        switching.switch(self.artifact, version)
        with LocalRecommender(self.artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
            return local.rank(self.asked, TOP_K)

    def wrong(self, place: int, found: Ranking) -> bool:
        """Scores are of the same numbers, in whatever order sums were made."""
        want = self.want[found.catalogue_version][place]
        same = np.array_equal(found.item_ids, want["item_ids"][0])
        return not (same and np.allclose(found.scores, want["scores"][0], atol=1e-4))


class Load(UnderLoad):
    """Clients that rank all the time, users of their own: which versions answered, and whatever was not right."""

    def __init__(self, world: World, server: RunningServer) -> None:
        self.versions: Counter[int] = Counter()
        self.problems: list[object] = []
        self.settled: int | None = None  # what every request that is sent now must be answered with
        self._world, self._url = world, server.grpc_url
        super().__init__(*(partial(self._ask, client) for client in range(3)))

    def _ask(self, client: int) -> None:
        number = client
        with Ranker(self._url) as ranker:
            while self.goes_on():
                number += 1
                place, before = number % len(self._world.asked), self.settled
                try:
                    found = ranker.rank(*self._world.asked[place], TOP_K, user_id=100 * client + place)
                    if self._world.wrong(place, found):
                        self.problems.append((place, found))
                    if before is not None and before == self.settled != found.catalogue_version:
                        self.problems.append((before, found.catalogue_version))
                    self.versions[found.catalogue_version] += 1
                except Exception as error:
                    self.problems.append(error)

    def seen(self, version: int) -> bool:
        """Whether it has answered since the last call that said so, or something went wrong."""
        enough = self.versions[version] >= 12
        if enough:
            self.versions[version] = 0
        return enough or bool(self.problems)


@pytest.fixture(scope="module")
def world(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    scratch = tmp_path_factory.mktemp("swap_rankings")
    return World(shutil.copytree(tiny_ranker, scratch / "artifact"), scratch)


@pytest.fixture(scope="module")
def ranking(world: World) -> Iterator[RunningServer]:
    with brief_server(
        world.artifact, beam_width=WIDTH, ensembles=("rank",), pool_user_mb=1, pool_item_mb=1
    ) as server:
        yield server


def test_every_ranking_is_of_one_version(world: World, ranking: RunningServer) -> None:
    assert not np.array_equal(world.want[1][0]["item_ids"], world.want[2][0]["item_ids"]), (
        "a test that cannot fail"
    )
    with Load(world, ranking) as load:
        until(lambda: load.seen(1))
        for version in (2, 3, 1, 3, 2, 1):
            load.settled = None
            load.settled = switching.switch(world.artifact, version).version
            until(lambda version=version: load.seen(version))
    assert load.problems == [] and ranking.restarts == 0
