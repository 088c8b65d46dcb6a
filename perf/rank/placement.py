"""Throughput of three placements of the items' KV over nodes, by the bandwidth between them: computed, not measured.

    genrec bench placement [--policies split,past] [--items 280000] [--tolerance 0.1]

On every node (replicate), each on one (hash), or the hot ones on every node and the cold ones on one (HRCS: BAT,
section 5.2, Algorithm 1). Copies take room from users, items elsewhere take the network. A request takes the time of
its tokens, counted by genrec bench pool_sim's simulation with the room that a placement leaves to users, and the time
of the items' KV that it fetches from other nodes, one after the other; users are sent to the node that has them. Rates
are of one node. The bound of Algorithm 1 is taken as it follows from its own definition, N / (N - 1), and as it is
printed, its inverse. Beside them stands the best of many shares that may be sharded, found by trying them: what
Algorithm 1 would reach if its tolerance were right. The defaults are the paper's: four nodes of 150 GB, Books,
Qwen2-1.5B on an A100 (1.4e14 FLOP/s are assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.nodes.placement import EVERYWHERE, Cluster, place, sharded_share
from genrec.progress import counting
from genrec.rank.choice import POLICIES
from perf.kit import report
from perf.rank.simulate import CANDIDATES, SHAPES, TOKEN_BYTES, DataShape, Trace, simulate, trace

GBIT_S = (1.0, 10.0, 100.0)
NODE_BYTES = 150e9
LEFT_BYTES = 5e9  # that users have of a node whatever happens
PAPER_FLOPS = 1.4e14  # a second, of an A100: assumed
FLOP_A_TOKEN = 2 * 1.31e9  # Qwen2-1.5B without its embeddings
# Of accesses, to sharded items: what is tried.
SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
HOT, DRAWN = 0.1, 0.9  # the hottest items, and their share of accesses (BAT, section 4.1)


def popularity(items: int) -> NDArray[np.float64]:
    """Accesses of items, hottest first: the power law whose hottest tenth draws nine tenths."""
    rank = np.arange(1.0, items + 1)
    low, high = 0.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        accesses = rank**-middle
        share = accesses[: int(HOT * items)].sum() / accesses.sum()
        low, high = (middle, high) if share < DRAWN else (low, middle)
    return rank**-low / (rank**-low).sum()


@dataclass(frozen=True)
class Held:
    """What a placement comes to."""

    node_bytes: float  # of items, on the fullest node
    found: float  # share of accesses to items that lie somewhere
    remote: float  # share of accesses to items that lie on another node


def held(placed: NDArray[np.int32], accesses: NDArray[np.float64], nodes: int, item_bytes: int) -> Held:
    """Where accesses go; what a node has no room for is nowhere: the coldest."""
    everywhere = placed == EVERYWHERE
    room = int((NODE_BYTES - LEFT_BYTES) / item_bytes)
    copies = int(everywhere.sum())
    there = np.ones(len(placed), bool)
    if copies > room:
        there[np.flatnonzero(everywhere)[room:]] = False
    kept = max(room - copies, 0) * nodes
    there[np.flatnonzero(~everywhere)[kept:]] = False
    rows = int((there & everywhere).sum()) + -(-int((there & ~everywhere).sum()) // nodes)
    remote = float(accesses[there & ~everywhere].sum()) * (nodes - 1) / nodes
    return Held(rows * item_bytes, float(accesses[there].sum()), remote)


class Node:
    """One node of the cluster under one policy: how many requests a second it answers, by placement and network."""

    def __init__(self, shape: DataShape, asked: Trace, policy: str, options: Any) -> None:
        self.shape, self._asked, self._policy, self._options = shape, asked, policy, options
        self._accesses = popularity(shape.items)
        self.token_s = FLOP_A_TOKEN / options.flops
        self._known: dict[float, tuple[Held, float, dict[str, float]]] = {}  # the network changes none of it

    def _simulated(self, share: float) -> tuple[Held, float, dict[str, float]]:
        if share not in self._known:
            nodes = self._options.nodes
            placed = place(self._accesses, nodes, share)
            what = held(placed, self._accesses, nodes, self.shape.item_tokens * TOKEN_BYTES)
            room = int(nodes * (NODE_BYTES - what.node_bytes) / TOKEN_BYTES)
            of = simulate(self.shape, self._asked, self._policy, room, item_hit=what.found)
            self._known[share] = what, float((placed == EVERYWHERE).mean()), of
        return self._known[share]

    def requests_a_second(self, share: float, network: float) -> dict[str, float]:
        """`rate`, and where time and room go, if `share` of accesses is to sharded items; `network` in tokens/s."""
        what, copied, of = self._simulated(share)
        computing = of["computed_tokens"] * self.token_s
        fetching = of["items_reused"] * self.shape.item_tokens * what.remote / what.found / network
        return {
            "rate": 1 / (computing + fetching),
            "network_share": fetching / (computing + fetching),
            "copied": copied,
            "items_gb_a_node": what.node_bytes / 1e9,
            "users_gb": self._options.nodes * (NODE_BYTES - what.node_bytes) / 1e9,
            "reused": of["reused"],
        }

    def compare(self, gbit_s: float) -> dict[str, dict[str, float]]:
        """Placement -> its figures at one bandwidth."""
        network, shape, options = gbit_s * 1e9 / 8 / TOKEN_BYTES, self.shape, self._options
        prefill_s = shape.user_tokens * self.token_s
        cluster = Cluster(options.nodes, network, prefill_s, CANDIDATES, shape.item_tokens, options.tolerance)
        shares = {
            "replicate": 0.0,
            "hash": 1.0,
            "hrcs": sharded_share(cluster),
            "hrcs as printed": sharded_share(cluster, as_printed=True),
        }
        every = [*shares.values(), *SHARES]
        told = counting(
            f"{self._policy}, {gbit_s:g} Gbit/s", len(every), "share", leave=False, iterable=every
        )
        rates = [self.requests_a_second(share, network) for share in told]
        found, tried = dict(zip(shares, rates, strict=False)), rates[len(shares) :]
        return found | {"best tried": max([*found.values(), *tried], key=lambda of: of["rate"])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("placement", __doc__)
    parser.add_argument(
        "--policies", default="split,past", help=f"choices of the prefix: {', '.join(POLICIES)}"
    )
    parser.add_argument("--items", type=int, default=SHAPES["books"].items, help="of the catalogue")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.1, help="Algorithm 1's alpha")
    parser.add_argument("--flops", type=float, default=PAPER_FLOPS, help="a second that a node computes")
    parser.add_argument("--requests", type=int, default=50_000, help="of the trace")
    asked = parser.parse_args(arguments)
    policies = asked.policies.split(",")
    if not set(policies) <= set(POLICIES):
        raise InputError("policies", f"is {asked.policies!r}", ", ".join(POLICIES))
    for name, least in (("items", 10), ("nodes", 2), ("flops", 1), ("requests", 100)):
        if getattr(asked, name) < least:
            raise InputError(name, f"is {getattr(asked, name)}", f"at least {least}")
    publication = report.begin(asked)
    shape = replace(SHAPES["books"], items=asked.items)
    requests = trace(shape, asked.requests)
    figures = {}
    for policy in policies:
        node = Node(shape, requests, policy, asked)
        figures[policy] = {f"{gbit_s:g}": node.compare(gbit_s) for gbit_s in GBIT_S}
        for gbit_s, found in figures[policy].items():
            show(f"{policy}, {gbit_s} Gbit/s, computed", found)
    publication.publish(
        {
            "computed_not_measured": True,
            **ratios(figures[policies[0]]),
            "of_policy": policies[0],
            "policies": figures,
        },
        repeats=1,
    )


def show(title: str, found: dict[str, dict[str, float]]) -> None:
    """A line per placement."""
    rows = [
        [name, f"{of['rate']:.1f}", f"{of['network_share']:.0%}", f"{of['copied']:.1%}",
         f"{of['items_gb_a_node']:.0f}", f"{of['users_gb']:.0f}", f"{of['reused']:.0%}"]
        for name, of in found.items()
    ]  # fmt: skip
    head = [title, "requests/s a node", "network", "copied", "items GB a node", "users GB", "reused"]
    print("\n" + report.columns(head, rows), flush=True)


def ratios(figures: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """HRCS over the others, at the bandwidth where it matters most, and which that is."""
    found: dict[str, float] = {}
    for other in ("replicate", "hash"):
        by = {gbit_s: of["hrcs"]["rate"] / of[other]["rate"] for gbit_s, of in figures.items()}
        best = max(by, key=lambda gbit_s: by[gbit_s])
        found[f"hrcs_over_{other}"], found[f"hrcs_over_{other}_gbit_s"] = by[best], float(best)
    return found


if __name__ == "__main__":
    main()
