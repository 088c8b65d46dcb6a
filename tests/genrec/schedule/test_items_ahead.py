"""Which items are computed before anybody asks, and what leaves for them; with real passes and a real pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.engine.load_ranker import load_entry_layout, load_rank_executors
from genrec.engine.ranking import RankPlan, RankRequest
from genrec.pool import mapping
from genrec.pool.pool import Pool
from genrec.rank.item_tokens import DistinctItems
from genrec.schedule.items_ahead import ItemsAhead
from genrec.schedule.scheduler import Scheduler
from genrec.settings import Settings
from tests.serving.processes import until

ROWS = 64  # of the pool; the catalogue has some 290 distinct items


class Bench:
    """Items ahead over real passes, on a queue of their own; it looks when a test says so."""

    def __init__(self, artifact: Path, folder: Path, rows: int) -> None:
        settings = Settings(artifact, folder / "arena", pool=folder / "pool")
        config = load_config(artifact)
        Pool.create(folder / "pool", 1 << 20, rows, load_entry_layout(settings, config).item_bytes)
        self.executor = load_rank_executors(settings, config)[0]
        self.alone = load_rank_executors(Settings(artifact, folder / "arena"), config)[0]
        self.items, self.version, self.now = DistinctItems.load(artifact, config), 1, 1000.0
        self.ran: list[int] = []
        self.scheduler: Scheduler[Any] = Scheduler([self._run], 1, 0.0, 1)
        self.ahead = ItemsAhead(
            self.executor, self.scheduler, lambda: (self.version, self.items), 0.01, clock=lambda: self.now
        )

    def _run(self, batch: list[Any]) -> None:
        batch[0].of.run(self.executor, batch[0])
        self.ran.append(len(batch[0].places))

    def look(self) -> None:
        """Plan, and wait until what was planned is done."""
        self.now += 10
        self.ahead.look()
        until(lambda: self.ahead.work.idle)

    def there(self) -> set[int]:
        """Which of the items the pool has."""
        keys = self.executor.items.words(self.items.tokens)
        return set(np.flatnonzero(~self.executor.items.absent(keys)).tolist())

    def ask(self, rows: NDArray[np.int64], keep: bool = False) -> None:
        """A ranking of items; its answer is the one without a pool."""
        tokens = self.items.tokens[rows]
        request = RankRequest(1, np.arange(12, dtype=np.int32), tokens, tokens)
        found, _ = self.executor.scores(request, RankPlan("split", True, keep))
        want, _ = self.alone.scores(request, RankPlan("whole", False, False))
        np.testing.assert_allclose(found, want, atol=1e-4)
        self.ahead.see(12, tokens)


@pytest.fixture
def start(tiny_ranker: Path, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made = []

    def start(rows: int = ROWS) -> Bench:
        made.append(Bench(tiny_ranker, tmp_path, rows))
        return made[0]

    yield start
    made[0].ahead.close()
    made[0].scheduler.close()


def counted() -> dict[str, float]:
    return {reason: metrics.ITEMS_AHEAD.value(reason=reason) for reason in metrics.AHEAD}


def test_first_the_most_popular_as_many_as_there_is_room_for(start: Callable[..., Bench]) -> None:
    bench, before = start(), counted()
    bench.look()
    popular = np.sort(bench.items.popularity)[::-1]
    there = np.array(sorted(bench.there()))
    assert len(there) == ROWS
    assert bench.items.popularity[there].min() == popular[ROWS - 1]
    assert counted() == {**before, "popular": before["popular"] + ROWS}
    bench.ask(there[:20])


def test_all_of_a_catalogue_that_there_is_room_for_and_then_it_costs_nothing(
    start: Callable[..., Bench],
) -> None:
    bench = start(1000)
    bench.look()
    assert len(bench.there()) == len(bench.items.tokens)
    batches = len(bench.ran)
    assert batches > 1 and bench.ran[0] == 1, "from small batches to larger ones"
    bench.ask(np.arange(30))
    for _ in range(3):
        bench.look()
    assert len(bench.ran) == batches, "nothing is missing"


def test_what_is_asked_for_takes_the_place_of_what_nobody_asks_for(start: Callable[..., Bench]) -> None:
    bench, before = start(), counted()
    bench.look()
    wanted = np.array(sorted(set(range(len(bench.items.tokens))) - bench.there()))[:10]
    bench.ask(wanted)
    bench.look()
    assert set(wanted.tolist()) <= bench.there() and len(bench.there()) == ROWS
    assert counted()["hot"] == before["hot"] + 10


def test_items_as_hot_as_those_that_are_there_stay_outside(start: Callable[..., Bench]) -> None:
    """More items are asked for than there is room for, all of them as often."""
    bench = start()
    bench.look()
    for _ in range(4):
        bench.ask(np.arange(200))
        bench.look()
        there, ran = bench.there(), len(bench.ran)
    for _ in range(6):
        bench.ask(np.arange(200))
        bench.look()
        assert bench.there() == there
    assert len(bench.ran) <= ran + 6, "a batch a plan is refused before it is computed"


def test_new_items_of_a_catalogue_come_in(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, before = start(), counted()
    whole = bench.items
    bench.items = DistinctItems(whole.tokens[20:], whole.popularity[20:])
    bench.look()
    bench.items, bench.version = whole, 2
    with monkeypatch.context() as broken:
        broken.setattr(bench.ahead, "_plan", lambda known: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.ahead.look()
    seen = bench.ahead._heat.seen
    bench.look()  # a plan that failed is made again, though nobody has asked for anything
    assert bench.ahead._heat.seen == seen, "new items count once"
    assert set(range(20)) <= bench.there()
    assert counted()["new"] == before["new"] + 20


def test_a_lost_pool_is_not_filled(
    start: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "LOOK_S", 0.0)
    bench = start()
    for file in (tmp_path / "pool").iterdir():
        file.unlink()
    bench.look()
    assert not bench.there()
    bench.ask(np.arange(20))


def test_batches_are_as_large_as_a_ranking_can_wait_for(start: Callable[..., Bench]) -> None:
    work = start().ahead.work
    for seconds, size in ((0.001, 2), (0.001, 4), (0.004, 8), (0.006, 8), (0.011, 4), (0.006, 4), (1.0, 2)):
        work._learn(work._size, seconds)
        assert work._size == size
    work._learn(1, 0.001)
    assert work._size == 2, "the rest of a plan says nothing of larger batches"


def test_items_that_find_no_place_say_nothing_of_larger_batches(start: Callable[..., Bench]) -> None:
    """The next that find one would be computed in a batch that no ranking can wait for."""
    bench, there, others = start(), np.arange(ROWS), np.arange(ROWS, 2 * ROWS)
    for rows in (there,) * 4:
        bench.ask(rows)
    bench.look()
    assert bench.there() == set(there.tolist())
    for rows in (others,) * 5:
        bench.ask(rows)
    bench.ahead.work._size, ran = 2, len(bench.ran)
    for _ in range(3):
        bench.look()
        bench.ask(np.arange(2 * ROWS))
    assert bench.ran[ran:] == [2] * 3 and bench.there() == set(there.tolist())
    assert bench.ahead.work._size == 2
    for _ in range(9):
        bench.ask(others[:1])
    bench.look()
    assert bench.there() >= {ROWS} and bench.ahead.work._size == 2, "one of two"


def test_a_plan_that_met_a_table_out_of_reach_is_made_again(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody has asked for anything meanwhile; the table of a pool that is full is asked for no more."""
    bench = start()
    with monkeypatch.context() as patch:
        patch.setattr(mapping.Mapping, "lock", out_of_reach)
        bench.look()
    assert not bench.there()
    bench.look()
    assert len(bench.there()) == ROWS
    passes = len(bench.ran)
    bench.look()
    assert len(bench.ran) == passes


def out_of_reach(*_: Any) -> None:
    raise mapping.Busy("a process that was stopped holds it")
