"""One of the nodes of `genrec bench placement_links`, on a host of its own: the first ranks, each other holds items."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.batch_cost import BatchCost
from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.errors import InputError
from genrec.kv.entries import EntryLayout
from genrec.nodes.item_store import ItemStore
from genrec.nodes.mooncake import Mooncake
from genrec.nodes.placement import EVERYWHERE, Cluster, owners_of, place, sharded_share
from genrec.pool.pool import Pool
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.settings import Settings
from perf.kit import turns
from perf.rank.asked import Asked, requests_of
from perf.rank.placement import LEFT_BYTES, NODE_BYTES
from perf.rank.rank import model_of
from perf.rank.simulate import SHAPES, TOKEN_BYTES
from perf.rank.ways import Answer, RankWay

PLACEMENTS = ("replicate", "hash", "hrcs")
READY = "ready"
PUT = 100  # items at once
PROBES, SOON = 15, 60.0  # fetches that the bandwidth is measured by; seconds, far more than one takes
WARM, TURN, CHECKED = 0.3, 20, 10  # as of `genrec bench rank`


@dataclass(frozen=True)
class LinkedWorld:
    """What all nodes know alike."""

    artifact: str
    model: str
    scale: int
    requests: int
    nodes: int
    folder: str  # in /dev/shm, for pools


class Node:
    """Engines, the items, and the users who are sent to this node."""

    def __init__(self, world: LinkedWorld, number: int, store: tuple[str, str]) -> None:
        self.world, artifact = world, Path(world.artifact)
        model, prompts = model_of(world.model)
        self.shape = SHAPES["books"].scaled(world.scale, prompts)
        self.items, asks = requests_of(Asked(self.shape), model, world.requests, 0)
        sent = np.random.default_rng(7).permutation(self.shape.users) % world.nodes == number
        self.asks = [(request, now) for request, now in asks if sent[request.owner]]
        kv_type = load_layout(Settings(artifact, artifact), model).kv_type
        self.layout = EntryLayout(model, self.shape.item_tokens, kv_type, model.levels)
        (self._passes,) = load_rankers(
            engine_of(artifact, "openvino"), model, kv_type, Settings(artifact, artifact)
        )
        self._head = RankerHead.load(artifact / "onnx" / HEAD, model)
        self.keys = self.executor(None).items.words(self.items)
        self.own = np.flatnonzero(owners_of(self.keys, world.nodes) == number)
        self.mooncake = joined(store, 2 * len(self.own) * self.layout.item_bytes + (64 << 20))

    def executor(self, pool: Pool | None, store: ItemStore | None = None) -> RankExecutor:
        """Over a pool, and the items of other nodes."""
        return RankExecutor(self._passes, self._head, self.layout, "m", pool, store=store)

    def put(self) -> None:
        """Its share of the items into the store."""
        items = self.executor(None).items
        for start in range(0, len(self.own), PUT):
            some = self.own[start : start + PUT]
            taken = self.mooncake.put_items(self.keys[some], items.rows(self.items[some]), SOON)
            if taken is None or not taken.all():
                raise RuntimeError("the store does not take an item")


def joined(store: tuple[str, str], segment_bytes: int) -> Mooncake:
    """In the store, once its master listens."""
    end = time.monotonic() + SOON
    while True:
        try:
            return Mooncake(*store, segment_bytes)
        except InputError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


class Placed:
    """A placement: which items are in the node's own pool from the start, what room it has, and where the rest is."""

    def __init__(self, node: Node, folder: Path, copied: NDArray[np.int64], store: ItemStore | None) -> None:
        """`copied`: the items that are to be on every node. With a `store`, every item is in it too, a share here."""
        shape, nodes, token_bytes = node.shape, node.world.nodes, node.layout.token_bytes
        rows = len(copied) + (shape.candidates if store else 0)
        held = (len(copied) + (len(node.items) / nodes if store else 0)) / len(node.items)  # of the items
        whole = SHAPES["books"]
        free = NODE_BYTES - held * whole.items * whole.item_tokens * TOKEN_BYTES
        part = shape.users * shape.user_tokens / (whole.users * whole.user_tokens)
        users = int(max(free, LEFT_BYTES) / TOKEN_BYTES * part) * token_bytes
        make: Callable[[Pool], RankExecutor] = lambda pool: node.executor(pool, store)  # noqa: E731
        self.copied = len(copied) / len(node.items)
        self.way = RankWay("split", make, folder, (users, rows), node.layout)
        self.way.fill(node.items[copied])
        self.answers: list[Answer] = []

    def figures(self, asks: list[RankRequest]) -> dict[str, float]:
        """Of what was answered."""
        users = sum(len(each.tokens) for each in asks)
        candidates = sum(each.candidates.size for each in asks)
        seconds = np.array([each.total_s for each in self.answers])
        return {
            "rate": len(seconds) / float(seconds.sum()),
            "ms": 1e3 * float(np.median(seconds)),
            "user_reused": sum(each.reuse.user for each in self.answers) / users,
            "items_reused": sum(each.reuse.items for each in self.answers) / candidates,
            "copied": self.copied,
        }


def measure(node: Node) -> dict[str, Any]:
    """All placements on one trace."""
    item_s, prefill_s = computing(node)
    fetch = fetching(node)
    shape, nodes = node.shape, node.world.nodes
    fixed_s, brought_s = fetch.seconds(1, 0), max(fetch.seconds(0, 1), 1e-9)
    cluster = Cluster(
        nodes, shape.item_tokens / brought_s, prefill_s, shape.candidates, shape.item_tokens, fetch_s=fixed_s
    )
    popular = (np.arange(shape.items) + 10.0) ** -1.0  # as `requests_of` draws them
    hot = place(popular, nodes, sharded_share(cluster)) == EVERYWHERE
    everywhere = {"replicate": np.ones(shape.items, bool), "hash": np.zeros(shape.items, bool), "hrcs": hot}
    with ExitStack() as stack:
        placed = {}
        for name in PLACEMENTS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=node.world.folder))) / "pool"
            store = ItemStore(lambda: node.mooncake, shape.item_tokens) if name != "replicate" else None
            if store:
                store.store = node.mooncake
            placed[name] = Placed(node, folder, np.flatnonzero(everywhere[name]), store)
        counted, apart = run(node, placed)
        return {
            **{name: each.figures(counted) for name, each in placed.items()},
            "item_s": item_s, "fetch_s": fixed_s, "brought_s": brought_s, "prefill_s": prefill_s,
            "fetched_item_s": brought_s + fixed_s / shape.candidates, "sharded_share": sharded_share(cluster),
            "counted": len(counted),
            "largest_difference": apart, "equal_answers": apart < 0.05,
        }  # fmt: skip


def run(node: Node, placed: dict[str, Placed]) -> tuple[list[RankRequest], float]:
    """Requests behind the first part, and how far scores lie from those without reuse at most."""
    alone, apart, ways = node.executor(None), 0.0, list(placed.values())
    warm = int(WARM * len(node.asks))
    for turn, first in enumerate(range(0, len(node.asks), TURN)):
        some = node.asks[first : first + TURN]
        for each in turns.order(ways, turn):
            given = [each.way.ask(request, now) for request, now in some]
            each.answers += given[max(warm - first, 0) :]
            for (request, _), answer in list(zip(some, given, strict=True))[::CHECKED]:
                want, _ = alone.scores(request, RankPlan("whole", False, False))
                apart = float(np.maximum(apart, np.abs(answer.scores - want).max() / want.std()))  # NaN stays
    return [request for request, _ in node.asks[warm:]], apart


def computing(node: Node) -> tuple[float, float]:
    """Seconds of an item among a ranking's, and of a mean user's tokens behind the candidates' KV."""
    executor, shape = node.executor(None), node.shape
    some = node.items[: shape.candidates]
    nearly_nobody = RankRequest(None, node.asks[0][0].tokens[: node.layout.step], some, node.asks[0][0].codes)
    mean = min(
        (request for request, _ in node.asks), key=lambda each: abs(len(each.tokens) - shape.user_tokens)
    )
    split = RankPlan("whole", False, False)
    with_user, without = (
        median(lambda: executor.scores(mean, split)),
        median(lambda: executor.scores(nearly_nobody, split)),
    )
    return median(lambda: executor.items.rows(some)) / shape.candidates, max(with_user - without, 1e-6)


def fetching(node: Node) -> BatchCost:
    """What fetches of items of other nodes take, of one to as many as a ranking has."""
    far = np.setdiff1d(np.arange(len(node.items)), node.own)
    draw, cost = np.random.default_rng(3), BatchCost()
    for probe in range(3 * PROBES):
        count = (1, -(-node.shape.candidates // 4), node.shape.candidates)[probe % 3]
        wanted = node.keys[draw.choice(far, count, replace=False)]
        with tempfile.TemporaryDirectory(dir=node.world.folder) as folder:
            Pool.create(Path(folder) / "pool", 0, len(wanted), node.layout.item_bytes)
            pool, begun = Pool(Path(folder) / "pool"), time.perf_counter()
            if not node.mooncake.bring_items(pool, wanted, SOON) or (pool.item_rows(wanted) < 0).any():
                raise RuntimeError("items of other nodes do not come")
            cost.learn(count, time.perf_counter() - begun)
    return cost


def median(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    return float(np.median(turns.repeated(work, PROBES)))


def work() -> None:
    """What the command's process says is its only argument, as JSON."""
    given = json.loads(sys.argv[1])
    number, store = given.pop("number"), tuple(given.pop("store"))
    node = Node(LinkedWorld(**given), number, store)
    node.put()
    if number:
        print(READY, flush=True)
        sys.stdin.read()
    else:
        print(json.dumps(measure(node)), flush=True)


if __name__ == "__main__":
    work()
