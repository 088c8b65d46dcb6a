"""Whether other nodes are asked for an item, and for how long: never longer than computing it takes."""

import threading
import time

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from genrec import metrics
from genrec.batch_cost import BatchCost
from genrec.errors import InputError
from genrec.nodes.item_store import RETRY_S, ItemStore
from genrec.pool.items import NONE
from genrec.pool.keys import words
from genrec.pool.pool import Pool
from genrec.steps import score_candidates
from tests.pool.entries import keys
from tests.pool.folder_store import FolderStore
from tests.serving.processes import until


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Near:
    """A node with a clock that stands still; bringing takes as long as `takes` says."""

    def __init__(self, folder):
        Pool.create(folder / "near", 0, 6, 64)
        self.pool, self.clock, self.takes = Pool(folder / "near"), Clock(), 0.0
        self.folder_store = FolderStore(folder / "store")
        self.store = ItemStore(lambda: self.folder_store, 3, self.clock)
        self.store.store, self.given = self.folder_store, []
        bring = self.folder_store.bring_items

        def timed(pool, asked, timeout_s, spared):
            self.given.append(timeout_s)
            self.clock.now += min(self.takes, timeout_s)
            return self.takes <= timeout_s and bring(pool, asked, timeout_s, spared)

        self.folder_store.bring_items = timed

    def put(self, *items):
        rows = np.array([[item] * 64 for item in items], np.uint8)
        taken = self.folder_store.put_items(words(keys(*items)), rows, 1.0)
        assert taken is not None and taken.all()

    def bring(self, *items, deadline_s=None, spared=NONE):
        return self.store.bring(self.pool, words(keys(*items)), deadline_s, spared)

    def there(self, *items):
        return [
            int(self.pool.items_memory.reshape(-1, 64)[row, 0]) for row in self.pool.item_rows(keys(*items))
        ]


@pytest.fixture
def near(tmp_path):
    return Near(tmp_path)


def test_nobody_is_asked_before_it_is_known_what_computing_takes(near):
    near.put(1, 2)
    assert not near.bring(1, 2) and not near.given
    near.store.computed(10, 0.1)
    assert near.bring(1, 2) and near.there(1, 2) == [1, 2]
    assert near.given == [pytest.approx(0.02)], "as long as computing both"


def test_a_deadline_leaves_the_time_to_compute_all(near):
    near.put(1)
    near.store.computed(1, 0.1)
    assert not near.bring(1, deadline_s=near.clock.now + 0.05) and not near.given
    near.takes = 0.04
    assert near.bring(1, deadline_s=near.clock.now + 0.15)
    assert near.given == [pytest.approx(0.05)]


def test_what_a_pass_takes_by_itself_is_told_from_what_an_item_takes(near):
    """A mean of an item would say 2 s for the last: a pass of one item has all of the pass."""
    for items in (40, 1, 20, 1):
        near.store.computed(items, 0.1 + 0.001 * items)
    assert near.store.most_s(40, None) == pytest.approx(0.14, rel=0.05)
    assert near.store.most_s(1, None) == pytest.approx(0.1, rel=0.05)


def test_passes_before_a_node_has_joined_are_rehearsals(near):
    joined, near.store.store = near.store.store, None
    near.store.computed(1, 5.0)
    near.store.store = joined
    near.put(1)
    assert not near.bring(1) and not near.given, "nothing is known yet"
    near.store.computed(1, 0.1)
    assert near.bring(1) and near.given == [pytest.approx(0.1)]


def test_a_node_joins_when_it_has_rehearsed(tiny_ranker, items, tmp_path, monkeypatch):
    store = ItemStore(lambda: FolderStore(tmp_path / "store"), 3)
    monkeypatch.setattr(score_candidates, "_item_store", lambda settings, options: store)
    with LocalRecommender(tiny_ranker, 16, decoder="rank") as local:
        until(lambda: store.ready)
        assert not store._compute.known
        local.rank([(items[:4], items[10:30])], 5)
        assert store._compute.known


def test_bandwidth_is_of_what_came_and_what_is_absent_says_nothing(near):
    before = {end: metrics.ITEM_FETCHES.value(end=end) for end in ("brought", "absent", "late")}
    near.store.computed(1, 1.0)
    near.takes = 0.5
    assert near.bring(8, 9) and near.store.tokens_a_second == 0
    near.put(1, 2)
    assert near.bring(1, 2, 9)
    assert near.store.tokens_a_second == pytest.approx(3 / 0.25)
    assert {end: metrics.ITEM_FETCHES.value(end=end) - n for end, n in before.items()} == {
        "brought": 2, "absent": 3, "late": 0,
    }  # fmt: skip


def test_who_does_not_answer_in_time_is_left_alone_for_a_while(near):
    near.store.computed(1, 0.1)
    near.put(1)
    near.takes = 10.0
    begun = near.clock.now
    assert not near.bring(1) and near.clock.now == pytest.approx(begun + 0.1)
    near.takes = 0.0
    assert not near.bring(1) and len(near.given) == 1
    near.clock.now += RETRY_S
    assert near.bring(1) and near.there(1) == [1]


def test_a_slow_network_is_tried_again_now_and_then(near):
    near.store.computed(1, 1.0)
    near.put(1, 2, 3)
    near.takes = 0.9
    assert near.bring(1)
    near.store._compute = BatchCost()
    near.store.computed(1, 0.5)
    assert not near.bring(2) and len(near.given) == 1, "it would take longer than computing"
    near.takes = 0.1
    near.clock.now += RETRY_S
    assert near.bring(2) and near.store.tokens_a_second > 3 / 0.9


def test_what_a_fetch_takes_by_itself_is_told_from_what_an_item_takes(near):
    near.store.computed(1, 10.0)
    near.put(*range(1, 7))
    for items in ((1,), (2, 3, 4, 5), (6,)):
        near.takes = 0.4 + 0.1 * len(items)
        assert near.bring(*items)
    assert near.store.fetch_s == pytest.approx(0.4, rel=0.05)
    assert near.store.tokens_a_second == pytest.approx(3 / 0.1, rel=0.1)


def test_what_a_ranking_has_found_stays_where_it_is(near):
    """A pool of six rows: without being told, the store takes the coldest for what it brings."""
    near.store.computed(1, 1.0)
    near.put(*range(1, 20))
    assert near.bring(1, 2, 3, 4, 5, 6)
    near.clock.now += 1
    near.there(5, 6, 1, 2)
    rows, generations = near.pool.find_items(keys(3, 4))
    assert near.bring(7, 8, 9, 10, 11, spared=rows) and near.pool.unchanged(rows, generations)
    assert (near.pool.item_rows(keys(7, 8, 9, 10, 11)) >= 0).sum() == 4
    assert near.bring(12, 13, 14, 15, 16, 17) and not near.pool.unchanged(rows, generations), "it cannot fail"


def test_it_joins_as_soon_as_there_is_somebody(tmp_path, monkeypatch):
    monkeypatch.setattr("genrec.nodes.item_store.RETRY_S", 0.01)
    tries = []

    def join():
        tries.append(1)
        if len(tries) < 3:
            raise (
                InputError("mooncake", "setup failed", "a master")
                if len(tries) == 1
                else OSError("no libibverbs")
            )
        return FolderStore(tmp_path / "store")

    store = ItemStore(join, 3)
    assert not store.ready
    store.start()
    deadline = time.monotonic() + 30
    while not store.ready:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert len(tries) == 3
    store.close()


def test_a_join_that_ends_after_the_node_has_left_is_left_too(tmp_path):
    began, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Late(FolderStore):
        def close(self, timeout_s):
            closed.set()
            return True

    def join():
        began.set()
        assert go_on.wait(30)
        return Late(tmp_path / "store")

    store = ItemStore(join, 3)
    store.start()
    assert began.wait(30)
    store.close()
    go_on.set()
    assert closed.wait(30)
