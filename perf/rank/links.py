"""Throughput of three placements of the items' KV over nodes, measured on links of several bandwidths.

    genrec bench placement_links [--gbit-s 0.1,1,10]

As `genrec bench placement`, which computes the same of the paper's cluster, but everything runs: hosts of their own on
this machine, on links that carry so much, with a Mooncake master on the first and a part of its store on each. One node
ranks; the others hold their share of the items and nothing else, so it has the machine's cores to itself. Its trace is
that of the users who are sent to it. The world is a hundredth of Books and the model has layers of the paper's, as in
`genrec bench rank --model 384-7`. A node has memory in the paper's proportion: for users there is what the placement's
items leave. On every node (replicate): all items in the node's own pool. Each on one (hash): all in the store, and the
pool has room for one ranking's. Hot ones on every node (hrcs): the pool has those that Algorithm 1 says for the link's
bandwidth, which is measured first, and the store has all. The three take turns of 20 requests. What does not come from
the store in the time of computing it is computed, as it is served. Needs root, ip, tc and Mooncake.

A processor computes a token far more slowly than the paper's accelerators, so its links are worth more. `as if` is the
bandwidth at which the paper's node would fetch an item in the same part of the time in which it computes one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from genrec.errors import InputError
from genrec.leftovers import SHM, own_prefix
from genrec.progress import counting
from perf.kit import report
from perf.kit.hosts import Hosts, isolated_hosts, why_none
from perf.kit.store_master import MASTER, PORT, master_command
from perf.rank.links_node import PLACEMENTS, READY, LinkedWorld
from perf.rank.mock_ranker import mock_ranker
from perf.rank.placement import FLOP_A_TOKEN, PAPER_FLOPS, ratios
from perf.rank.rank import model_of
from perf.rank.simulate import SHAPES, TOKEN_BYTES

STORE_PORT = 21201
LEASE = "--default_kv_lease_ttl=1000"  # ms


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("placement_links", __doc__)
    parser.add_argument("--gbit-s", default="0.1,1,10", help="that a node may send, separated by commas")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument(
        "--scale", type=int, default=100, help="users, items, rate and memory are divided by this"
    )
    parser.add_argument("--requests", type=int, default=6000, help="of the trace of all nodes")
    parser.add_argument("--model", default="384-7", help="the paper's layers: width and how many")
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-ranker"))
    asked = parser.parse_args(arguments)
    try:
        rates = [float(rate) for rate in asked.gbit_s.split(",")]
    except ValueError as error:
        raise InputError("gbit-s", f"is {asked.gbit_s!r}", "numbers with commas between") from error
    for name, given, least in (
        ("gbit-s", min(rates), 0.001),
        ("nodes", asked.nodes, 2),
        ("requests", asked.requests, 100),
    ):
        if given < least:
            raise InputError(name, f"is {given}", f"at least {least}")
    if shutil.which(MASTER) is None:
        raise InputError(
            MASTER, "is not on the path", "pip install 'genrec-triton[mooncake]', and its bin on the path"
        )
    if problem := why_none():
        raise InputError("hosts", problem, "Linux, root, and the commands ip and tc")
    publication = report.begin(asked)
    model, prompts = model_of(asked.model)
    shape = SHAPES["books"].scaled(asked.scale, prompts)
    artifact = asked.artifact.with_name(f"{asked.artifact.name}-{asked.model}-{shape.item_tokens}")
    mock_ranker(artifact, shape.item_tokens, model)
    with tempfile.TemporaryDirectory(prefix=own_prefix(), dir=SHM) as folder:  # here: nodes are killed
        world = LinkedWorld(str(artifact), asked.model, asked.scale, asked.requests, asked.nodes, folder)
        figures = {
            f"{rate:g}": measure(world, rate)
            for rate in counting("links", len(rates), "link", iterable=rates)
        }
    for rate, found in figures.items():
        show(f"{rate} Gbit/s", found)
    publication.publish(
        {**ratios(figures), "links": figures, "world": asdict(shape)},
        repeats=min(found["counted"] for found in figures.values()),
    )


def measure(world: LinkedWorld, gbit_s: float) -> dict[str, Any]:
    """Figures of every placement at one bandwidth."""
    with ExitStack() as stack:
        hosts = stack.enter_context(isolated_hosts(world.nodes))
        stack.enter_context(Running(hosts.command(0, master_command(hosts.address(0), LEASE))))
        holders = [stack.enter_context(node(world, hosts, number)) for number in range(1, world.nodes)]
        for holder in holders:
            holder.line(READY)
        hosts.limit(gbit_s)
        found: dict[str, Any] = json.loads(stack.enter_context(node(world, hosts, 0)).line("{"))
    paper_s = SHAPES["books"].item_tokens * FLOP_A_TOKEN / PAPER_FLOPS
    paper_bits = SHAPES["books"].item_tokens * TOKEN_BYTES * 8
    return found | {"as_if_gbit_s": paper_bits / (paper_s * found["fetched_item_s"] / found["item_s"]) / 1e9}


def node(world: LinkedWorld, hosts: Hosts, number: int) -> Running:
    """A node's process. The first one measures; each other holds its items until its input ends."""
    store = f"{hosts.address(0)}:{PORT}", f"{hosts.address(number)}:{STORE_PORT}"
    given = json.dumps(asdict(world) | {"number": number, "store": store})
    return Running(hosts.command(number, [sys.executable, "-m", "perf.rank.links_node", given]))


class Running:
    """A process until the end of a `with`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        self._process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def line(self, begins: str) -> str:
        """The next line that begins so. Raises RuntimeError with the end of its log if it ends without one."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(begins):
                return line
        self._log.seek(0)
        raise RuntimeError(f"a node has ended: {self._log.read()[-4000:]}")


def show(title: str, found: dict[str, Any]) -> None:
    """A line per placement."""
    rows = [
        [name, f"{of['rate']:.1f}", f"{of['ms']:.1f}", f"{of['user_reused']:.0%}", f"{of['items_reused']:.0%}",
         f"{of['copied']:.1%}"]
        for name in PLACEMENTS for of in [found[name]]
    ]  # fmt: skip
    title += f", as if {found['as_if_gbit_s']:.0f} in the paper's cluster"
    print(
        "\n"
        + report.columns([title, "requests/s", "ms", "users' tokens reused", "items'", "on every node"], rows)
    )


if __name__ == "__main__":
    main()
