"""Two servers of one artifact over Mooncake, each on a host of its own: run by test_nodes.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ensembles.local import LocalRecommender
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from perf.kit.hosts import Hosts, isolated_hosts
from tests.serving.one_node import SAYS, TOP_K, WIDTH
from tests.serving.processes import until

PORT = 21051  # of the master


class FarServer:
    """A server on a host of its own; it is ready once it has answered."""

    def __init__(self, stack: ExitStack, hosts: Hosts, artifact: Path, number: int) -> None:
        given = [str(artifact), str(number), f"{hosts.address(0)}:{PORT}", f"{hosts.address(number)}:21201"]
        command = hosts.command(number, [sys.executable, "-m", "tests.serving.one_node", *given])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(self._end)

    def _end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def answer(self) -> Any:
        """What it says next."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(SAYS):
                return json.loads(line[len(SAYS) :])
        raise AssertionError("a node has ended")

    def do(self, name: str, *arguments: Any, **labels: str) -> Any:
        """What `one_node.Node` can do."""
        assert self._process.stdin
        print(json.dumps((name, arguments, labels)), file=self._process.stdin, flush=True)
        return self.answer()


class Nodes:
    """What they are asked, and what they must answer."""

    def __init__(self, artifact: Path, servers: list[FarServer]) -> None:
        self.servers = servers
        ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
        self._asked = [(ids[n : n + 5], ids[40 * n + 10 : 40 * n + 50]) for n in range(6)]
        with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
            self._want: list[Any] = local.rank(self._asked, TOP_K)

    def answer_alike(self) -> None:
        """Both nodes, and as a server without a pool."""
        for server in self.servers:
            for (item_ids, scores), want in zip(server.do("ask", self._asked), self._want, strict=True):
                np.testing.assert_array_equal(item_ids, want["item_ids"][0])
                np.testing.assert_allclose(scores, want["scores"][0], atol=2e-2)

    def counted(self, name: str, **labels: str) -> list[float]:
        """By node."""
        return [server.do("count", name, **labels) for server in self.servers]

    def fetch(self) -> None:
        """Items come from the other node to each, sooner or later: neither has room for all."""
        before = self.counted("genrec_item_fetches_total", end="brought")

        def fetched() -> bool:
            self.answer_alike()
            now = self.counted("genrec_item_fetches_total", end="brought")
            return all(np.greater(now, before))

        until(fetched)


def main(artifact: Path) -> None:
    with ExitStack() as stack:
        hosts = stack.enter_context(isolated_hosts(2))
        master = master_of(stack, hosts)
        servers = [FarServer(stack, hosts, artifact, number) for number in range(2)]
        assert [server.answer() for server in servers] == ["ready", "ready"]
        nodes = Nodes(artifact, servers)
        nodes.answer_alike()
        until(lambda: min(nodes.counted("genrec_items_put_total")) > 0)
        nodes.fetch()
        hosts.cut(1)
        for _ in range(3):  # the second time the store is left alone
            nodes.answer_alike()
        hosts.join(1)
        nodes.fetch()
        servers[1].do("kill", "score_candidates")
        nodes.answer_alike()
        os.kill(master.pid, signal.SIGKILL)
        master.wait()
        nodes.answer_alike()
    print("as it should be", flush=True)


def master_of(stack: ExitStack, hosts: Hosts) -> subprocess.Popen[bytes]:
    """On the first host."""
    command = [
        "mooncake_master", f"--rpc_address={hosts.address(0)}", f"--rpc_port={PORT}", "--metrics_host=127.0.0.1",
        "--metrics_port=21003", "--rpc_thread_num=2", "--client_ttl=3",
    ]  # fmt: skip
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    master = subprocess.Popen(hosts.command(0, command), **quiet)
    stack.callback(master.wait)
    stack.callback(master.kill)
    return master


if __name__ == "__main__":
    main(Path(sys.argv[1]))
