"""Work that is done in small batches while nothing else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec.schedule.idle_items import SHARE, IdleBatch, IdleItems


class Bench:
    """Batches that stand in a queue; each is run when a test says so."""

    def __init__(self) -> None:
        self.queue: list[IdleBatch] = []
        self.offers: list[tuple[int, float]] = []  # tokens, and the pause before them
        scheduler: Any = SimpleNamespace(offer=self.offer)
        self.now = 0.0
        self.idle, self.done = IdleItems(scheduler, 3, 0.01, clock=lambda: self.now), list[int]()
        self.executor: Any = None

    def offer(self, batch: IdleBatch, tokens: int, pause_s: float) -> None:
        self.queue.append(batch)
        self.offers.append((tokens, pause_s))

    def work(self, executor: Any, places: Any) -> tuple[int, bool]:
        self.done += places.tolist()
        return len(places), True

    def run(self) -> None:
        while self.queue:
            self.idle.run(self.executor, self.queue.pop(0))


@pytest.mark.parametrize("goes_on", [True, False])
def test_work_that_begins_while_a_batch_of_the_former_runs_is_done(goes_on: bool) -> None:
    bench = Bench()

    def former(executor: Any, places: Any) -> tuple[int, bool]:
        bench.idle.begin(np.arange(10, 15), bench.work)
        return len(places), goes_on

    bench.idle.begin(np.arange(5), former)
    bench.run()
    assert bench.done == [10, 11, 12, 13, 14] and bench.idle.idle


@pytest.mark.parametrize("end", [False, None])
def test_what_is_left_of_work_that_ends_is_not_tried(end: bool | None) -> None:
    bench, tried = Bench(), list[int]()

    def ends(executor: Any, places: Any) -> tuple[int, bool | None]:
        tried.extend(places.tolist())
        return 0, end

    bench.idle.begin(np.arange(5), ends)
    bench.run()
    assert tried == [0] and bench.idle.idle is (end is False), (
        "the one that puts it elsewhere says when it has"
    )
    bench.idle.end()
    assert bench.idle.idle
    bench.idle.begin(np.arange(2), bench.work)
    bench.run()
    assert bench.done == [0, 1]


def test_batches_grow_while_they_are_fast_and_take_their_share_of_the_time() -> None:
    bench, took = Bench(), 0.004

    def work(executor: Any, places: Any) -> tuple[int, bool]:
        assert not bench.idle.idle
        bench.now += took
        return bench.work(executor, places)

    bench.idle.begin(np.arange(15), work)
    bench.run()
    assert bench.done == list(range(15)) and bench.idle.idle
    tokens, pauses = zip(*bench.offers, strict=True)
    assert tokens == (3 * 1, 3 * 2, 3 * 4, 3 * 8)
    assert pauses == (0, *[pytest.approx(took / SHARE - took)] * 3)


def test_work_that_fails_is_over_and_what_comes_next_is_done() -> None:
    bench, tried = Bench(), list[int]()

    def fails(executor: Any, places: Any) -> tuple[int, bool]:
        tried.extend(places.tolist())
        raise KeyError

    bench.idle.begin(np.arange(5), fails)
    bench.run()
    assert tried == [0] and bench.idle.idle
    bench.idle.begin(np.arange(2), bench.work)
    bench.run()
    assert bench.done == [0, 1]
