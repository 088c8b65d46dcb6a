"""Work that is done in small batches while nothing else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec.schedule.idle_items import IdleBatch, IdleItems


class Bench:
    """Batches that stand in a queue; each is run when a test says so."""

    def __init__(self) -> None:
        self.queue: list[IdleBatch] = []
        scheduler: Any = SimpleNamespace(offer=lambda batch, tokens, pause_s: self.queue.append(batch))
        self.idle, self.done = IdleItems(scheduler, 3, 0.01, clock=lambda: 0.0), list[int]()
        self.executor: Any = None

    def work(self, executor: Any, places: Any) -> bool:
        self.done += places.tolist()
        return True

    def run(self) -> None:
        while self.queue:
            self.idle.run(self.executor, self.queue.pop(0))


@pytest.mark.parametrize("goes_on", [True, False])
def test_work_that_begins_while_a_batch_of_the_former_runs_is_done(goes_on: bool) -> None:
    bench = Bench()

    def former(executor: Any, places: Any) -> bool:
        bench.idle.begin(np.arange(10, 15), bench.work)
        return goes_on

    bench.idle.begin(np.arange(5), former)
    bench.run()
    assert bench.done == [10, 11, 12, 13, 14] and bench.idle.idle


@pytest.mark.parametrize("end", [False, None])
def test_what_is_left_of_work_that_ends_is_not_tried(end: bool | None) -> None:
    bench, tried = Bench(), list[int]()

    def ends(executor: Any, places: Any) -> bool | None:
        tried.extend(places.tolist())
        return end

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
