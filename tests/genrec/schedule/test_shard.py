"""Two nodes over one store, with real passes and pools: what one has put the other brings, and answers never change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.batch_cost import BatchCost
from genrec.engine.fill import fill
from genrec.engine.load_ranker import load_entry_layout, load_rank_executors
from genrec.engine.ranking import RankPlan, RankRequest, Reuse
from genrec.nodes.item_store import RETRY_S, ItemStore
from genrec.nodes.node_share import NodeShare
from genrec.nodes.placement import EVERYWHERE, Cluster, owners_of, sharded_share
from genrec.pool.pool import Pool
from genrec.rank.item_tokens import DistinctItems
from genrec.schedule.cost import PassCost
from genrec.schedule.items_ahead import ItemsAhead
from genrec.schedule.scheduler import Scheduler
from genrec.schedule.shard import Shard
from genrec.settings import Settings
from tests.pool.folder_store import FolderStore
from tests.serving.processes import until

ROWS, T = 64, 3


class Node:
    """One of two; it plans when a test says so."""

    def __init__(self, artifact: Path, folder: Path, node: int, most: int = 1000) -> None:
        settings = Settings(artifact, folder / "arena", pool=folder / f"pool{node}")
        assert settings.pool
        config = load_config(artifact)
        Pool.create(settings.pool, 1 << 20, ROWS, load_entry_layout(settings, config).item_bytes)
        self.folder, self.pool, self.now = FolderStore(folder / "store"), settings.pool, 1000.0
        self.store = ItemStore(lambda: self.folder, T, lambda: self.now + time.monotonic())
        self.store.store = self.folder
        self.executor = load_rank_executors(settings, config, self.store)[0]
        self.alone = load_rank_executors(Settings(artifact, folder / "arena"), config)[0]
        self.items, self.cost = DistinctItems.load(artifact, config), PassCost()
        self.keys = self.executor.items.words(self.items.tokens)
        self.scheduler: Scheduler[Any] = Scheduler([self._run], 1, 0.0, 1)
        clock = lambda: self.now  # noqa: E731
        self.shard = Shard(
            self.store, NodeShare(node, 2), settings.pool, most, self.cost, self.scheduler, T, 0.01, clock
        )
        self.ahead = ItemsAhead(
            self.executor, self.scheduler, lambda: (1, self.items), 0.01, self.shard, clock
        )

    def _run(self, batch: list[Any]) -> None:
        batch[0].of.run(self.executor, batch[0])

    def look(self) -> None:
        self.now += 10
        self.ahead.look()
        until(lambda: self.ahead.work.idle and self.shard.work.idle)

    @property
    def own(self) -> NDArray[np.int64]:
        return np.flatnonzero(owners_of(self.keys, 2) == self.shard.share.node)

    def in_store(self) -> NDArray[np.int64]:
        found = self.folder.have_items(self.keys, 1.0)
        return np.flatnonzero(np.zeros(0) if found is None else found)

    def ask(self, rows: NDArray[np.int64]) -> Reuse:
        """A ranking of items; its answer is the one without a pool."""
        tokens = self.items.tokens[rows]
        request = RankRequest(1, np.arange(12, dtype=np.int32), tokens, tokens)
        found, reuse = self.executor.scores(request, RankPlan("split", True, True))
        want, _ = self.alone.scores(request, RankPlan("whole", False, False))
        np.testing.assert_allclose(found, want, atol=1e-4)
        self.ahead.see(12, tokens)
        return reuse


@pytest.fixture
def node(tiny_ranker: Path, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(number: int, **given: Any) -> Node:
        made.append(Node(tiny_ranker, tmp_path, number, **given))
        return made[-1]

    yield make
    for each in made:
        each.folder.hangs = False
        each.scheduler.close()


def absent(node: Node) -> NDArray[np.int64]:
    return np.flatnonzero(node.executor.items.absent(node.keys))


def test_a_node_puts_its_own_items_and_another_brings_them(node: Callable[..., Node]) -> None:
    near, far = node(0), node(1)
    near.look()
    np.testing.assert_array_equal(near.in_store(), near.own)
    far.store.computed(1, 10.0)  # so that bringing pays on any machine
    missing = np.intersect1d(near.own, absent(far))[:20]
    assert far.ask(missing).items == 20 * T, "all of them came from the other node"
    assert far.store.tokens_a_second > 0
    others = np.intersect1d(far.own, absent(far))[:10]
    assert far.ask(others).items == 0, "which nobody has put"
    far.look()
    assert len(far.in_store()) == len(far.items.tokens)


def test_rows_that_are_put_are_those_that_a_ranking_keeps(node: Callable[..., Node]) -> None:
    near = node(0)
    near.executor.items.keep(near.items.tokens[:20])
    pool = Pool(near.pool)
    rows = pool.item_rows(near.keys[:20])
    held = pool.items_memory.reshape(-1, pool.item_row_bytes)[rows]
    np.testing.assert_array_equal(held, near.executor.items.rows(near.items.tokens[:20]))


def test_a_store_that_hangs_or_ends_costs_time_and_no_answer(node: Callable[..., Node]) -> None:
    near, far = node(0), node(1)
    near.look()
    far.store.computed(1, 0.01)
    far.folder.hangs, asked = True, far.folder.asked
    assert far.ask(near.own[:8]).items == 0
    far.ask(near.own[8:16])
    assert far.folder.asked == asked + 1, "it is left alone for a while"
    far.folder.hangs = False
    far.folder.lose()
    far.now += RETRY_S
    far.store.computed(1, 10.0)
    assert far.ask(near.own[16:24]).items == 0


def test_what_the_store_has_lost_is_put_again(node: Callable[..., Node]) -> None:
    near = node(0)
    near.look()
    near.folder.lose()
    near.ask(np.arange(4))
    near.look()
    np.testing.assert_array_equal(near.in_store(), near.own)
    near.folder.hangs = True
    near.ask(np.arange(4))
    near.now += 10
    near.shard._put.clear()
    near.ahead.look()
    near.folder.hangs = False
    until(lambda: near.shard.work.idle)
    near.look()
    near.look()
    np.testing.assert_array_equal(near.in_store(), near.own)
    assert not near.shard.lacks


def test_what_the_store_has_no_room_for_is_not_counted_and_is_put_once_there_is(
    node: Callable[..., Node],
) -> None:
    near = node(0)
    near.folder.most, before = 10, metrics.ITEMS_PUT.value()
    near.look()
    assert len(near.in_store()) == 10 == len(near.shard._put) and near.shard.lacks
    assert metrics.ITEMS_PUT.value() == before + 10
    near.folder.most = len(near.own)
    for _ in range(3):
        near.look()
    np.testing.assert_array_equal(near.in_store(), near.own)
    assert not near.shard.lacks


def test_no_more_is_put_than_there_is_memory_for_and_the_hottest_first(node: Callable[..., Node]) -> None:
    near = node(0, most=10)
    near.look()
    popularity = near.items.popularity
    found = near.in_store()
    assert len(found) == 10 and set(found) <= set(near.own)
    assert popularity[found].min() >= np.sort(popularity[near.own])[-10]


def test_what_every_node_holds_follows_from_what_is_measured(node: Callable[..., Node]) -> None:
    near = node(0)
    near.look()
    assert near.shard.share.sharded == 0, "nothing is measured: all that there is room for"
    assert near.shard.share.replicated > 0.9
    near.ask(np.arange(40))
    near.store._fetch = BatchCost()
    for items in (1, 40):
        near.store._fetch.learn(items, 0.0005 + 0.001 * items)
    for _ in range(50):
        near.cost.learn(True, 0, 12, 0.02)
    assert near.store.fetch_s == pytest.approx(0.0005, rel=0.2)
    measured = near.store.tokens_a_second, near.cost.seconds(True, 0, 12), 40, T
    share = sharded_share(Cluster(2, *measured, fetch_s=near.store.fetch_s))
    assert 0 < share < 1 and near.shard.sharded() == pytest.approx(share)
    near.look()
    told = NodeShare.load(near.pool)
    assert told == near.shard.share and told.sharded == pytest.approx(share) and 0 < told.replicated < 0.2
    placed = told.place(near.ahead._heat.of(near.items.tokens) + near.items.popularity / 1e6, near.keys)
    assert set(np.flatnonzero(placed == EVERYWHERE)) <= set(range(40)), "those that were asked for"


def test_fill_computes_what_its_node_is_to_hold(tiny_ranker: Path, tmp_path: Path) -> None:
    """Hot items and its own; with nothing hot its own alone."""
    pool = tmp_path / "pool"
    settings = Settings(tiny_ranker, pool, pool=pool)
    config, items = load_config(tiny_ranker), DistinctItems.load(tiny_ranker, load_config(tiny_ranker))
    Pool.create(pool, 1 << 20, 1000, load_entry_layout(settings, config).item_bytes)
    executor = load_rank_executors(settings, config)[0]
    keys = executor.items.words(items.tokens)
    for sharded in (1.0, 0.3):
        share = NodeShare(1, 2, sharded)
        share.save(pool)
        want = np.isin(share.place(items.popularity, keys), (EVERYWHERE, 1))
        before = executor.items.absent(keys)
        assert fill(settings) == (want & before).sum() > 0
        np.testing.assert_array_equal(executor.items.absent(keys), ~want)
    assert fill(settings) == 0 and not want.all()
