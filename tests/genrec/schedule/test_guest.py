"""The thread that brings requests as one that runs batches."""

import threading

from genrec.schedule.scheduler import GRACE_S, Scheduler


class Keeps:
    """A batch function that keeps what it was given and who called it; the batch that begins with `held` waits."""

    def __init__(self, held=None):
        self.ran, self.held, self.begun, self.go = [], held, threading.Event(), threading.Event()

    def __call__(self, batch):
        self.ran.append((batch, threading.current_thread()))
        if batch[0] == self.held:
            self.begun.set()
            assert self.go.wait(30)


def bring(scheduler, *items):
    with scheduler.guest():
        for item in items:
            scheduler.submit(item, 10)


def test_a_guest_runs_the_next_batch_and_the_stream_what_is_left():
    keeps, me = Keeps(), threading.current_thread()
    # Until it is closed, the grace lasts
    scheduler = Scheduler([keeps], 20, 0.0, 8, lambda: 1000.0, lends=True)
    bring(scheduler, "a", "b", "c")
    assert keeps.ran == [(["a", "b"], me)], "one batch, and then Triton may bring more"
    scheduler.close()
    (_, (batch, by)) = keeps.ran
    assert batch == ["c"] and by is not me


def test_a_guest_that_comes_back_has_what_it_left_with_what_it_brings():
    clock = 1000.0
    keeps, me = Keeps(), threading.current_thread()
    scheduler = Scheduler([keeps], 20, 0.0, 8, lambda: clock, lends=True)
    bring(scheduler, "a", "b", "c")  # the stream leaves it to the guest until time passes, which it does not
    bring(scheduler, "d")
    assert [(["a", "b"], me), (["c", "d"], me)] == keeps.ran
    bring(scheduler, "e", "f", "g")
    clock += 2 * GRACE_S
    scheduler.close()
    assert keeps.ran[-1][0] == ["g"] and keeps.ran[-1][1] is not me


def test_what_is_left_runs_when_no_guest_comes_back():
    keeps = Keeps(held="c")
    scheduler = Scheduler([keeps], 20, 0.0, 8, lends=True)
    bring(scheduler, "a", "b", "c")
    assert keeps.begun.wait(30)
    keeps.go.set()
    scheduler.close()


def test_no_two_batches_run_at_once():
    """What came without a guest is under way: the guest waits."""
    keeps = Keeps(held="a")
    scheduler = Scheduler([keeps], 20, 0.0, 8, lends=True)
    scheduler.submit("a", 10)
    assert keeps.begun.wait(30)
    guest = threading.Thread(target=bring, args=(scheduler, "b"))
    guest.start()
    guest.join(0.1)
    assert guest.is_alive() and len(keeps.ran) == 1
    keeps.go.set()
    guest.join(30)
    assert [batch for batch, _ in keeps.ran] == [["a"], ["b"]] and keeps.ran[1][1] is guest
    scheduler.close()


def test_what_is_to_wait_for_company_is_not_the_guest_s():
    keeps = Keeps()
    scheduler = Scheduler([keeps], 20, 3600.0, 8, lends=True)
    bring(scheduler, "a")
    assert keeps.ran == []
    bring(scheduler, "b")
    assert [batch for batch, _ in keeps.ran] == [["a", "b"]], "a full batch"
    scheduler.close()


def test_two_streams_keep_theirs():
    keeps, me = Keeps(), threading.current_thread()
    scheduler = Scheduler([keeps, keeps], 20, 0.0, 8)
    bring(scheduler, "a", "b")
    scheduler.close()
    assert sorted(item for batch, _ in keeps.ran for item in batch) == ["a", "b"]
    assert all(by is not me for _, by in keeps.ran)


def test_guests_and_others_lose_nothing():
    keeps = Keeps()
    scheduler = Scheduler([keeps], 30, 0.0, 3, lends=True)

    def guest():
        for first in range(0, 100, 4):
            bring(scheduler, *range(first, first + 4))

    def other():
        for n in range(100, 200):
            scheduler.submit(n, 10)

    threads = [threading.Thread(target=each) for each in (guest, other)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    scheduler.close()
    assert sorted(item for batch, _ in keeps.ran for item in batch) == list(range(200))
