"""Two servers of one artifact over Mooncake, in a network of their own: run by test_nodes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from clients.ranker import Ranker
from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from tests.deploy.prometheus import scrape, total
from tests.nodes.mooncake_nodes import MASTER
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

WIDTH, TOP_K, STORE = 16, 8, "127.0.0.1:21051"


class Nodes:
    """What they are asked, and what they must answer."""

    def __init__(self, artifact: Path, servers: list[RunningServer]) -> None:
        self.servers = servers
        self._ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
        with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
            asked = [self._asked(n) for n in range(6)]
            self._want = local.rank(asked, TOP_K)

    def _asked(self, number: int) -> tuple[list[int], list[int]]:
        return self._ids[number : number + 5], self._ids[40 * number + 10 : 40 * number + 50]

    def answer_alike(self) -> None:
        """Both nodes, and as a server without a pool."""
        for number, want in enumerate(self._want):
            assert isinstance(want, dict)
            for server in self.servers:
                with Ranker(server.grpc_url) as ranker:
                    found = ranker.rank(*self._asked(number), TOP_K, user_id=number)
                np.testing.assert_array_equal(found.item_ids, want["item_ids"][0])
                np.testing.assert_allclose(found.scores, want["scores"][0], atol=2e-2)

    def have_fetched(self) -> bool:
        """Whether items came from the other node, once both have answered."""
        self.answer_alike()
        return sum(self.counted("genrec_item_fetches_total", end="brought")) > 0

    def counted(self, name: str, **labels: str) -> list[float]:
        """By node."""
        return [total(scrape(server.metrics_url), name, **labels) for server in self.servers]


def node(artifact: Path, number: int) -> Any:
    """A server whose own pool has room for half of the items, so that it needs the other's."""
    return brief_server(
        artifact, beam_width=WIDTH, ensembles=("rank",), pool_user_mb=4, pool_item_mb=1, probe_every_s=0.5,
        nodes=2, node=number, store=STORE, store_host=f"127.0.0.1:{21201 + number}", store_mb=64,
    )  # fmt: skip


def main(artifact: Path) -> None:
    master = subprocess.Popen(MASTER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with node(artifact, 0) as first, node(artifact, 1) as second:
            nodes = Nodes(artifact, [first, second])
            nodes.answer_alike()
            until(lambda: min(nodes.counted("genrec_items_put_total")) > 0)
            nodes.answer_alike()
            until(nodes.have_fetched)
            restarts = second.restarts
            os.kill(stub_of(second.pid, "score_candidates"), signal.SIGKILL)
            until(lambda: second.restarts > restarts)
            nodes.answer_alike()
            os.kill(master.pid, signal.SIGKILL)
            master.wait()
            nodes.answer_alike()
    finally:
        master.kill()
        master.wait()
    print("as it should be", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
