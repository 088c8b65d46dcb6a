"""Which items lie on every node and which on one: hot-replicated, cold-sharded placement (BAT, section 5.2).

Reading an item that lies elsewhere takes the network; a copy on every node takes room from users. Algorithm 1 copies as
few items as keep the time of the network below a share of the time of the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genrec.errors import InputError
from genrec.pool.keys import Words

EVERYWHERE = -1


@dataclass(frozen=True)
class Cluster:
    """What Algorithm 1 is told, all of it measured."""

    nodes: int
    tokens_a_second: float  # KV that the network carries to a node
    prefill_s: float  # of a user's tokens behind the candidates' KV
    candidates: int
    item_tokens: int
    tolerance: float = 0.1  # the paper's alpha: time of the network per time of computation
    fetch_s: float = 0.0  # what a fetch takes whatever it brings, which the paper leaves out

    def __post_init__(self) -> None:
        least = {"nodes": 1, "candidates": 1, "item_tokens": 1}
        for name, value in vars(self).items():
            if not value >= least.get(name, 0) or value == float("inf"):
                raise InputError(name, f"is {value}", f"finite, at least {least.get(name, 0)}")


def sharded_share(cluster: Cluster, as_printed: bool = False) -> float:
    """The share of accesses that may go to sharded items (R_max, at most 1).

    Of R accesses to sharded items (N - 1) / N are remote, so R c S (N - 1) / (N B) <= alpha t bounds R by
    alpha t B / (c S) times N / (N - 1). The paper prints (N - 1) / N there; `as_printed` does so too.

    A ranking that misses any of its c items has to fetch, and what a fetch takes by itself counts too: it is fetch_s
    times the chance of that, 1 - (1 - R)^c.
    """
    elsewhere = (cluster.nodes - 1) / cluster.nodes
    if not elsewhere:
        return 1.0  # one node has everything
    if not cluster.tokens_a_second:
        return 0.0
    remote = 1 / elsewhere if as_printed else elsewhere
    each_s = cluster.item_tokens / cluster.tokens_a_second * remote
    most_s = cluster.tolerance * cluster.prefill_s

    def network_s(share: float) -> float:
        fetches = 1 - (1 - share) ** cluster.candidates
        return cluster.fetch_s * fetches + each_s * share * cluster.candidates

    low, high = 0.0, 1.0
    for _ in range(50):  # it grows with the share
        middle = (low + high) / 2
        low, high = (middle, high) if network_s(middle) <= most_s else (low, middle)
    return 1.0 if network_s(1.0) <= most_s else low


def owners_of(keys: Words, nodes: int) -> NDArray[np.int32]:
    """int32[I]: a node for each item, by its key: nodes need not ask each other, and agree whatever is hot."""
    return (keys[:, 0] % np.uint64(nodes)).astype(np.int32)


def place(
    frequencies: ArrayLike, nodes: int, sharded: float, owners: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """int32[I]: the node of each item, EVERYWHERE for the hottest, of items accessed `frequencies` float[I] times.

    Fewest items are EVERYWHERE such that at most a share `sharded` of accesses goes to the rest. Each of the rest lies
    with its owner, int32[I]; without owners it is dealt out by hotness, so that nodes have equally many and equally hot
    ones, and a small change of hotness moves many. Raises InputError.
    """
    counts = np.asarray(frequencies, np.float64)
    if counts.ndim != 1 or not (np.isfinite(counts) & (counts >= 0)).all():
        raise InputError(
            "frequencies", f"have shape {list(counts.shape)}", "one axis of finite numbers from 0"
        )
    hottest = np.argsort(-counts, kind="stable")
    covered = np.concatenate(([0.0], np.cumsum(counts[hottest])))
    needed = (1 - sharded) * covered[-1]
    copied = int(np.searchsorted(covered, needed * (1 - 1e-12)))
    placed = np.full(len(counts), EVERYWHERE, np.int32)
    cold = hottest[copied:]
    placed[cold] = np.arange(len(cold)) % nodes if owners is None else owners[cold]
    return placed


def replicated(placed: NDArray[np.int32]) -> float:
    """The share of items that lie on every node (r)."""
    return float((placed == EVERYWHERE).mean()) if len(placed) else 0.0


def items_on(placed: NDArray[np.int32], node: int) -> NDArray[np.int64]:
    """Numbers of the items that lie on a node, ascending: all that is to be in its pool."""
    return np.flatnonzero((placed == EVERYWHERE) | (placed == node))
