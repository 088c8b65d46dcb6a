"""A stream outlives whatever a batch does, keeps nothing of it, and nobody waits for one that is gone."""

import threading
import time
import weakref

import pytest

from genrec.errors import QueueFull
from genrec.schedule.scheduler import Scheduler


def test_a_batch_that_raises_ends_no_stream_and_stands_nowhere():
    ran, done, now = [], threading.Event(), [1000.0]

    def run(batch):
        ran.append(batch)
        if batch == ["bad"]:
            now[0] += 60.0
            raise OSError("no shared memory is left")
        now[0] += 0.01
        done.set()

    scheduler = Scheduler([run], 10, 0.0, 1, lambda: now[0])
    scheduler.submit("bad", 10)
    scheduler.submit("good", 10)
    assert done.wait(30) and ran == [["bad"], ["good"]]
    scheduler.close()
    assert not scheduler._running and scheduler.ahead_s(1e12) == 0.0
    assert 0 < scheduler._until_done(now[0], [10]) < 1, "nothing is learnt from how long it took"


def test_nothing_is_taken_once_nobody_would_run_it():
    ran = []

    def run(batch):
        ran.append(batch)
        if batch == ["first"]:
            scheduler.submit("of a batch that runs", 1)

    scheduler = Scheduler([run], 10, 0.0, 1)
    scheduler.submit("first", 1)
    scheduler.close()
    assert ran == [["first"], ["of a batch that runs"]]
    with pytest.raises(QueueFull, match="queue: takes nothing"):
        scheduler.submit("late", 1)


class Item:
    """What can be watched."""


def test_a_stream_that_waits_keeps_nothing_of_what_it_ran(without_collector):
    scheduler, item = Scheduler([lambda batch: None], 10, 0.0, 1), Item()
    left = weakref.ref(item)
    scheduler.submit(item, 10)
    del item
    while not idle(scheduler):
        time.sleep(1e-3)
    assert left() is None
    scheduler.close()


def idle(scheduler):
    """Whether its stream waits, with nothing to run."""
    with scheduler._changed:
        return bool(scheduler._changed._waiters) and not scheduler._queue and not scheduler._running
