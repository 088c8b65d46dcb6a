"""Catalogue swaps of a running server under load: every answer is the local runtime's for the version it reports."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from build.catalogue import add_items, remove_items
from build.groups import group_items
from clients.errors import BadRequest
from clients.recommender import Recommender
from clients.wire import Recommendation
from deploy import switch as switching
from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE, VALID_IDS
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of, point, read_current
from genrec.errors import ArtifactError, GenrecError
from tests.serving.loaded import UnderLoad
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

pytestmark = pytest.mark.serving
WIDTH, TOP_K = 32, 20
MODELS = {"recommend": "beam", "recommend_draft": "draft"}
NEW = 999_999  # the item that version 3 adds: a twin of the first answer's best

Key = tuple[str, int, int]  # ensemble, version, history
Expected = dict[Key, tuple[np.ndarray, np.ndarray]]


def best_of(artifact: Path, histories: list[list[int]], version: int) -> Expected:
    """What the local runtime answers while a version is current, by both decoders."""
    switching.switch(artifact, version)
    found: Expected = {}
    for model, decoder in MODELS.items():
        with LocalRecommender(artifact, WIDTH, slots=16, decoder=decoder) as local:
            for place, answer in enumerate(local.recommend(histories, TOP_K)):
                assert not isinstance(answer, GenrecError)
                assert answer["report"][0, 5] == version
                found[model, version, place] = (answer["item_ids"][0], answer["scores"][0])
    return found


class World:
    """A server of its own, three versions of its catalogue, and what each answers to some histories.

    Version 2 has lost the best item of the first answer and every third other, so rows are others; 3 adds one.
    """

    def __init__(self, artifact: Path, scratch: Path) -> None:
        self.artifact = artifact
        first = Catalogue.load(artifact / CATALOGUE)
        items = [int(i) for i in first.item_ids]
        self.histories = [items[n : n + 1 + n % 12] for n in range(0, 48, 4)]
        self.expected = best_of(artifact, self.histories, 1)
        self.gone = int(self.expected["recommend", 1, 0][0][0])
        codes = ",".join(str(code) for code in first.codes[first.rows_of([self.gone])[0]])
        remove_items(artifact, np.unique([self.gone, *items[1::3]]))
        (scratch / "new.csv").write_text(f"item,title,code_1,code_2,code_3\n{NEW},new,{codes}\n")
        add_items(artifact, scratch / "new.csv")
        for version in (2, 3):
            self.expected |= best_of(artifact, self.histories, version)
        switching.switch(artifact, 1)

    def wrong(self, model: str, place: int, answer: Recommendation) -> bool:
        items, scores = self.expected[model, answer.catalogue_version, place]
        return not (np.array_equal(answer.item_ids, items) and np.array_equal(answer.scores, scores))


@pytest.fixture(scope="module")
def world(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    scratch = tmp_path_factory.mktemp("swap")
    return World(shutil.copytree(tiny, scratch / "artifact"), scratch)


@pytest.fixture(scope="module")
def moving(world: World) -> Iterator[RunningServer]:
    with brief_server(world.artifact, beam_width=WIDTH, ensembles=tuple(MODELS)) as running:
        yield running


class Load(UnderLoad):
    """Clients that ask both ensembles all the time: which versions answered, and whatever was not right."""

    def __init__(self, world: World, server: RunningServer) -> None:
        self.versions: dict[str, Counter[int]] = {model: Counter() for model in MODELS}
        self.problems: list[object] = []
        self.settled: int | None = None  # what every request that is sent now must be answered with
        self._world = world
        kinds = [(m, p, u) for m in MODELS for p, u in (("grpc", server.grpc_url), ("http", server.http_url))]
        super().__init__(*(partial(self._ask, n, *kind) for n, kind in enumerate(2 * kinds)))

    def _ask(self, number: int, model: str, protocol: str, url: str) -> None:
        with Recommender(url, protocol, model=model) as recommender:
            while self.goes_on():
                number += 1
                place, before = number % len(self._world.histories), self.settled
                try:
                    answer = recommender.recommend(self._world.histories[place], TOP_K)
                    if self._world.wrong(model, place, answer):
                        self.problems.append((model, place, answer))
                    if before is not None and before == self.settled != answer.catalogue_version:
                        self.problems.append((before, answer.catalogue_version))
                    self.versions[model][answer.catalogue_version] += 1
                except Exception as error:
                    self.problems.append(error)

    def seen(self, version: int, count: int = 8) -> bool:
        """Whether both ensembles have answered with the version since the last call that said so, or failed to."""
        enough = all(versions[version] >= count for versions in self.versions.values())
        if enough:
            for versions in self.versions.values():
                versions[version] = 0
        return enough or bool(self.problems)


def test_swaps_under_load_lose_nothing_and_mix_nothing(world: World, moving: RunningServer) -> None:
    with Load(world, moving) as load:
        until(lambda: load.seen(1))
        for move in (2, 3, None, 3, 1, 2, None):
            load.settled = None
            now = (
                switching.roll_back(world.artifact)
                if move is None
                else switching.switch(world.artifact, move)
            )
            load.settled = now.version
            until(lambda now=now: load.seen(now.version))
    assert load.problems == []
    assert (now.version, moving.restarts) == (1, 0)


def test_a_removed_item_is_gone_and_an_added_one_comes(world: World, moving: RunningServer) -> None:
    switching.switch(world.artifact, 2)
    with Recommender(moving.grpc_url) as recommender:
        everything = recommender.recommend(world.histories[0], WIDTH)
        assert world.gone not in everything.item_ids and everything.catalogue_version == 2
        switching.switch(world.artifact, 3)
        both = recommender.recommend([NEW, world.gone], TOP_K)
        assert (both.dropped, both.catalogue_version) == (1, 3)
        answer = recommender.recommend(world.histories[0], TOP_K)
        assert answer.item_ids[0] == NEW and world.gone not in answer.item_ids
        switching.switch(world.artifact, 1)
        assert recommender.recommend(world.histories[0], TOP_K).item_ids[0] == world.gone


def test_groups_come_with_a_swap_and_are_asked_for_by_name(world: World, moving: RunningServer) -> None:
    served, everyone = (
        read_current(world.artifact).version,
        [items for items in world.histories if len(items) > 4],
    )
    file, sale = world.artifact / "groups.csv", sorted({item for items in everyone for item in items[:3]})
    file.write_text("group\n" + "sale\n" * len(sale) + "7\n" * 2)
    grouped = group_items(world.artifact, file, np.array([*sale, *sale[:2]]), base=1)
    asks = [
        (partial(Recommender, url, protocol), model)
        for protocol, url in (("grpc", moving.grpc_url), ("http", moving.http_url))
        for model in MODELS
    ]
    switching.switch(world.artifact, grouped)
    for client, model in asks:
        with client(model=model) as recommender:
            for history in [[], *everyone]:
                some = recommender.recommend(history, TOP_K, only_groups=["sale"], exclude_groups=[7])
                same = recommender.recommend(history, TOP_K, only=sale[2:])
                assert some.item_ids.tolist() == same.item_ids.tolist() and set(some.item_ids) <= set(
                    sale[2:]
                )
                assert np.array_equal(some.scores, same.scores)
                assert len(some.item_ids) == min(TOP_K, len(sale) - 2)
                fewer = recommender.recommend(history, TOP_K, exclude_history=True, exclude_groups=["sale"])
                assert not set(fewer.item_ids) & {*sale, *history} and len(fewer.item_ids) == TOP_K
            with pytest.raises(BadRequest, match=r"only_groups: names 8, .*7, \d+ \(sale\)"):
                recommender.recommend(everyone[0], only_groups=["sale", 8])
    switching.switch(world.artifact, served)
    with (
        Recommender(moving.grpc_url) as recommender,
        pytest.raises(BadRequest, match="exclude_groups: names"),
    ):
        recommender.recommend(everyone[0], exclude_groups=["sale"])
    shutil.rmtree(folder_of(world.artifact, grouped))


def test_a_version_that_cannot_be_loaded_is_refused_and_the_old_one_goes_on(
    world: World, moving: RunningServer
) -> None:
    serving = read_current(world.artifact).version
    broken = remove_items(world.artifact, np.array([NEW]), base=3)
    path = folder_of(world.artifact, broken) / CATALOGUE
    path.write_bytes(path.read_bytes()[:-1])
    with Load(world, moving) as load:
        load.settled = serving
        with pytest.raises(ArtifactError, match=str(path)):
            switching.switch(world.artifact, broken)
        # Past the command's own checks the processes still refuse it, and the command hears so.
        before = read_current(world.artifact)
        point(world.artifact, before.to(broken))
        (folder,) = switching.servers_of(world.artifact)
        until(lambda: all(a.refused for a in agreement.acknowledgements(folder).values()))
        with pytest.raises(ArtifactError, match=rf"{path}: .*refused by \w+-\d+"):
            switching._wait(world.artifact, read_current(world.artifact))
        point(world.artifact, before._replace(serial=before.serial + 2))
        until(lambda: load.seen(serving))
    assert load.problems == [] and moving.restarts == 0
    shutil.rmtree(path.parent)


def test_a_killed_stub_comes_back_with_the_current_version(world: World, moving: RunningServer) -> None:
    assert switching.switch(world.artifact, 3).version == 3
    restarts = moving.restarts
    os.kill(stub_of(moving.pid, "draft_beam"), signal.SIGKILL)
    until(lambda: moving.restarts == restarts + 1)
    with Load(world, moving) as load:
        load.settled = 3
        until(lambda: load.seen(3))
        load.settled = None
        load.settled = switching.roll_back(world.artifact).version
        until(lambda: load.seen(load.settled))
    assert load.problems == []


@pytest.mark.parametrize("model", ["validity_lookup", "encode_history"])  # alone, and with the whole server
@pytest.mark.parametrize(
    "name", [pytest.param(VALID_IDS, marks=pytest.mark.long), CATALOGUE]
)  # the launcher too reads the second
def test_a_process_killed_while_a_broken_version_is_pointed_to_serves_what_is_served(
    world: World, moving: RunningServer, name: str, model: str
) -> None:
    """As a `swap` leaves it that was killed; a server elsewhere, which nobody waits for, has it like this too."""
    assert switching.switch(world.artifact, 2).version == 2
    broken = remove_items(world.artifact, np.array([world.gone]), base=1)
    path = folder_of(world.artifact, broken) / name
    path.write_bytes(path.read_bytes()[:-1])
    before, restarts = read_current(world.artifact), moving.restarts
    point(world.artifact, before.to(broken))
    (folder,) = switching.servers_of(world.artifact)
    until(lambda: all(a.refused for a in agreement.acknowledgements(folder).values()))
    os.kill(stub_of(moving.pid, model), signal.SIGKILL)
    until(lambda: moving.restarts == restarts + 1)
    with Load(world, moving) as load:
        load.settled = 2
        until(lambda: load.seen(2))
    assert load.problems == []
    assert switching.roll_back(world.artifact).version == 2
