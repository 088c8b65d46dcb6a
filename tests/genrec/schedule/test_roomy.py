"""Batches of more tokens than the capacity, where they take no longer than they may."""

import threading

from genrec.schedule.scheduler import Scheduler


class Clock:
    """Time that passes when a batch says so."""

    now = 0.0

    def __call__(self):
        return self.now


def batches_of(seconds_a_token, roomy_s, queued):
    """The sizes of the batches that are made of `queued` requests of 100 tokens, after some that ran alone."""
    clock, go, sizes = Clock(), threading.Event(), []
    alone, begun = threading.Semaphore(0), threading.Event()

    def run(batch):
        if batch == ["last"]:
            begun.set()
            assert go.wait(30)
        else:
            sizes.append(len(batch))
        clock.now += 0.001 + seconds_a_token * 100 * len(batch)
        alone.release()

    scheduler = Scheduler([run], 200, 0.0, 32, clock, roomy_s=roomy_s)
    for _ in range(8):
        scheduler.submit("first", 100)
        assert alone.acquire(timeout=30)
    scheduler.submit("last", 100)
    assert begun.wait(30)
    del sizes[:]
    for n in range(queued):
        scheduler.submit(n, 100)
    go.set()
    scheduler.close()
    return sizes


def test_a_batch_of_a_small_model_has_what_it_is_done_with_in_time():
    """A request alone takes 2 ms, and the estimate is that of requests alone until there are larger batches."""
    sizes = batches_of(1e-5, 0.025, 40)
    assert sizes[0] == 12 and sum(sizes) == 40
    assert max(sizes[1:]) > 12, "as it is known by now that half of those 2 ms are for being a batch"


def test_a_batch_of_a_large_model_has_the_capacity():
    assert batches_of(1e-3, 0.025, 6) == [2, 2, 2]


def test_where_it_may_not_take_longer_the_capacity_is_the_limit():
    assert batches_of(1e-5, 0.0, 6) == [2, 2, 2]


def test_those_that_are_not_alike_are_never_a_batch():
    """The first takes with it whoever is; the others keep their order."""
    go, begun, batches = threading.Event(), threading.Event(), []

    def run(batch):
        if batch == ["last"]:
            begun.set()
            assert go.wait(30)
        else:
            batches.append(batch)

    alike = lambda first, other: first[0] == other[0] == "a"  # noqa: E731
    scheduler = Scheduler([run], 1000, 0.0, 3, Clock(), alike=alike)
    scheduler.submit("last", 100)
    assert begun.wait(30)
    for item in ("a1", "b1", "a2", "b2", "a3", "a4"):
        scheduler.submit(item, 100)
    go.set()
    scheduler.close()
    assert batches == [["a1", "a2", "a3"], ["b1"], ["b2"], ["a4"]]
