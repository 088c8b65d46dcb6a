"""A real server computes items while nothing is asked of it: at its start, and when the catalogue changes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.catalogue import add_items
from cli import main
from clients.ranker import Ranker
from deploy import switch as switching
from deploy import unread
from deploy.launcher import RunningServer
from deploy.pools import pools_of
from ensembles.local import LocalRecommender
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.pool.pool import Pool
from tests.deploy.prometheus import scrape, total
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

pytestmark = pytest.mark.serving
WIDTH, LEVELS, TOP_K = 16, 3, 8
NEW = (999_999, 999_998)  # items that version 2 adds


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    artifact = shutil.copytree(tiny_ranker, folder / "artifact")
    catalogue = Catalogue.load(artifact / CATALOGUE)
    known = {tuple(codes) for codes in catalogue.codes.tolist()}
    codes = [each for each in np.ndindex(*catalogue.codebook_sizes) if each not in known]
    lines = [f"{item},new,{','.join(map(str, of))}" for item, of in zip(NEW, codes, strict=False)]
    (folder / "new.csv").write_text("\n".join(["item,title,code_1,code_2,code_3", *lines]) + "\n")
    assert add_items(artifact, folder / "new.csv") == 2
    switching.switch(artifact, 1)
    return artifact


@pytest.fixture(scope="module")
def idle(artifact: Path) -> Iterator[RunningServer]:
    with brief_server(
        artifact, beam_width=WIDTH, ensembles=("rank",), pool_user_mb=4, pool_item_mb=4, probe_every_s=0.5
    ) as server:
        yield server


def ahead(server: RunningServer, reason: str) -> float:
    return total(scrape(server.metrics_url), "genrec_items_ahead_total", reason=reason)


def distinct(artifact: Path) -> int:
    return len(np.unique(Catalogue.load(artifact / CATALOGUE).codes, axis=0))


def test_the_first_ranking_finds_all_its_items(idle: RunningServer, artifact: Path) -> None:
    """The answer is the one without a pool; what probes have asked for was there before."""
    ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    (pool,) = pools_of(artifact)
    until(lambda: Pool(pool).usage()["items"] == distinct(artifact))
    until(lambda: ahead(idle, "popular") >= distinct(artifact) - 8)
    with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        (want,) = local.rank([(ids[:5], ids[50:90])], TOP_K)
    with Ranker(idle.grpc_url) as ranker:
        found = ranker.rank(ids[:5], ids[50:90], TOP_K, user_id=5)
    assert found.items_reused == 40 * LEVELS
    np.testing.assert_array_equal(found.item_ids, want["item_ids"][0])
    np.testing.assert_allclose(found.scores, want["scores"][0], atol=1e-5)


def test_new_items_are_computed_after_a_swap(idle: RunningServer, artifact: Path) -> None:
    switching.switch(artifact, 2)
    until(lambda: ahead(idle, "new") == len(NEW))
    ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    with Ranker(idle.grpc_url) as ranker:
        found = ranker.rank(ids[:3], [*NEW, *ids[60:64]], TOP_K, user_id=6)
    assert found.items_reused == 6 * LEVELS and len(found.item_ids) == 6


@pytest.mark.long
def test_a_killed_process_goes_on_where_it_was(idle: RunningServer, artifact: Path) -> None:
    (pool,) = pools_of(artifact)
    before, restarts = Pool(pool).usage()["items"], idle.restarts
    os.kill(stub_of(idle.pid, "score_candidates"), signal.SIGKILL)
    until(lambda: idle.restarts > restarts)
    (pool,) = pools_of(artifact)
    until(lambda: Pool(pool).usage()["items"] >= before)


# Where the package is installed it would listen on every address.
@pytest.mark.skipif(find_spec("mooncake") is not None, reason="mooncake is installed")
def test_a_node_that_cannot_join_its_store_answers_all_the_same(
    tiny_ranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "find_spec", lambda name: name)  # else it is refused before it starts
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")  # nobody else serves it
    ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        (want,) = local.rank([(ids[:5], ids[50:90])], TOP_K)
    node: dict[str, Any] = {"nodes": 2, "node": 1, "store": "127.0.0.1:9", "store_host": "127.0.0.1:10"}
    with (
        brief_server(artifact, beam_width=WIDTH, ensembles=("rank",), pool_item_mb=4, **node) as server,
        Ranker(server.grpc_url) as ranker,
    ):
        for _ in range(3):
            found = ranker.rank(ids[:5], ids[50:90], TOP_K, user_id=5)
            np.testing.assert_array_equal(found.item_ids, want["item_ids"][0])
        until(lambda: ahead(server, "popular") > 0)
        capsys.readouterr()
        assert main.main(["pool", "status", str(artifact)]) == 0
        said = capsys.readouterr().out.split()
        assert said[said.index("node") + 1] == "1" and said[said.index("nodes") + 1] == "2"
