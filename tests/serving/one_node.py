"""One of several servers over Mooncake, on a host of its own: does what two_nodes.py says, a line each."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from clients.ranker import Ranker
from deploy.launcher import RunningServer
from tests.deploy.prometheus import scrape, total
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

WIDTH, TOP_K = 16, 8
SAYS = "> "  # what begins so is an answer


class Node:
    """What it can be told."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def ask(self, asked: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[float]]]:
        """Items and scores of rankings, of a user each."""
        with Ranker(self._server.grpc_url) as ranker:
            found = [ranker.rank(*each, TOP_K, user_id=user) for user, each in enumerate(asked)]
        return [(each.item_ids.tolist(), each.scores.tolist()) for each in found]

    def count(self, name: str, **labels: str) -> float:
        """What a metric says."""
        return total(scrape(self._server.metrics_url), name, **labels)

    def kill(self, model: str) -> bool:
        """The process of a model; answered when it is back."""
        restarts = self._server.restarts
        os.kill(stub_of(self._server.pid, model), signal.SIGKILL)
        until(lambda: self._server.restarts > restarts)
        return True


def main(artifact: Path, number: int, store: str, host: str) -> None:
    """A server whose own pool has room for half of the items, so that it needs the other's."""
    options: dict[str, Any] = {
        "beam_width": WIDTH, "ensembles": ("rank",), "pool_user_mb": 4, "pool_item_mb": 1, "probe_every_s": 0.5,
        "nodes": 2, "node": number, "store": store, "store_host": host, "store_mb": 64,
    }  # fmt: skip
    with brief_server(artifact, **options) as server:
        node = Node(server)
        say("ready")
        for line in sys.stdin:
            name, arguments, labels = json.loads(line)
            say(getattr(node, name)(*arguments, **labels))


def say(answer: Any) -> None:
    """To who told it."""
    print(SAYS + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
