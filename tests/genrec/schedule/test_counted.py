"""What a queue counts of its requests and batches, as dashboards show it."""

from __future__ import annotations

import threading

import pytest

from genrec import metrics
from genrec.metrics import Histogram
from genrec.schedule.scheduler import Scheduler

COUNTED = (metrics.QUEUE_SECONDS, metrics.BATCH_REQUESTS, metrics.BATCH_TOKENS, metrics.BATCH_SECONDS)


def so_far(family: Histogram) -> tuple[float, float]:
    """The sum, and how many."""
    *_, total, count = family.samples()
    return total.value, count.value


def test_who_waited_how_long_and_what_ran_is_counted() -> None:
    now, begun, go = [1000.0], threading.Event(), threading.Event()

    def run(batch: list[str]) -> None:
        begun.set()
        assert go.wait(30)
        now[0] += 0.5

    scheduler = Scheduler([run], 100, 0.0, 8, lambda: now[0])
    before = [so_far(each) for each in COUNTED]
    scheduler.submit("first", 10)
    assert begun.wait(30)
    scheduler.submit("second", 20)
    now[0] += 2.0
    scheduler.submit("third", 30)
    now[0] += 1.0
    assert metrics.QUEUE_REQUESTS.value() == 2
    go.set()
    scheduler.close()
    assert metrics.QUEUE_REQUESTS.value() == 0
    since = [
        tuple(new - old for new, old in zip(so_far(each), was, strict=True))
        for each, was in zip(COUNTED, before, strict=True)
    ]
    waited = 0.0 + 3.5 + 1.5  # the first batch is done 3.5 s after it began; the others run together
    assert since == [pytest.approx(each) for each in ((waited, 3), (3, 2), (60, 2), (3.5 + 0.5, 2))]
