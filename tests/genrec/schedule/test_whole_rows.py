"""Batches where shapes are few: rows that are padding cost as much as requests."""

import threading

import pytest

from genrec.schedule.scheduler import Scheduler
from genrec.settings import padded_rows
from tests.genrec.schedule.test_roomy import Clock


def batches_of(fixed_s, seconds_a_row, queued):
    """The sizes of the batches that are made of `queued` requests, after some of one and of two."""
    clock, go, sizes = Clock(), threading.Event(), []
    begun, done = threading.Semaphore(0), threading.Semaphore(0)

    def run(batch):
        begun.release()
        if batch[0] == "hold":
            assert go.wait(30)
            go.clear()
        sizes.append(len(batch))
        clock.now += fixed_s + seconds_a_row * padded_rows(len(batch))
        done.release()

    def hold_and_queue(count):
        scheduler.submit("hold", 100)
        assert begun.acquire(timeout=30)
        for n in range(count):
            scheduler.submit(n, 100)
        go.set()
        assert done.acquire(timeout=30)

    scheduler = Scheduler([run], 10_000, 0.0, 8, clock, rows=padded_rows)
    for _ in range(8):
        hold_and_queue(2)
        assert begun.acquire(timeout=30) and done.acquire(timeout=30)
    del sizes[:]
    hold_and_queue(queued)
    scheduler.close()
    return sizes[1:]


@pytest.mark.parametrize(
    "queued, want", [(2, [2]), (3, [2, 1]), (4, [4]), (5, [4, 1]), (7, [4, 2, 1]), (8, [8]), (11, [8, 2, 1])]
)
def test_rows_of_a_large_model_are_not_padded(queued, want):
    assert batches_of(0.001, 0.01, queued) == want


@pytest.mark.parametrize("queued, want", [(3, [3]), (5, [5]), (7, [7]), (11, [8, 3])])
def test_where_a_batch_more_costs_more_than_padding_it_is_padded(queued, want):
    assert batches_of(0.1, 0.001, queued) == want
