"""The scheduler: what goes into a batch, when it goes, and who is refused."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec import metrics
from genrec.errors import DeadlineExceeded, QueueFull
from genrec.schedule.scheduler import LIMIT, Scheduler


class Gate:
    """A batch function that waits until it is told to go on, and keeps what it was given."""

    def __init__(self, open_=True):
        self.batches, self.go, self.begun = [], threading.Event(), threading.Event()
        if open_:
            self.go.set()

    def __call__(self, batch):
        self.batches.append(batch)
        self.begun.set()
        assert self.go.wait(30)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=60),
    capacity=st.integers(1, 150),
    most=st.integers(1, 9),
    streams=st.integers(1, 3),
)
def test_every_item_runs_once_in_batches_that_fit(sizes, capacity, most, streams):
    gates = [Gate() for _ in range(streams)]
    scheduler = Scheduler(gates, capacity, 0.0, most)
    for place, size in enumerate(sizes):
        scheduler.submit((place, size), size)
    scheduler.close()
    batches = [batch for gate in gates for batch in gate.batches]
    assert sorted(item for batch in batches for item in batch) == list(enumerate(sizes))
    for batch in batches:
        longest = max(size for _, size in batch)
        assert len(batch) == 1 or (len(batch) <= most and len(batch) * longest <= capacity)


def test_a_batch_begins_with_the_oldest_and_takes_those_nearest_in_length():
    gate = Gate(open_=False)
    scheduler = Scheduler([gate], 400, 0.0, 3)
    scheduler.submit("first", 10)
    assert gate.begun.wait(30)  # the rest is queued behind it
    for name, size in (("a", 50), ("far", 400), ("b", 60), ("c", 100), ("d", 49)):
        scheduler.submit(name, size)
    gate.go.set()
    scheduler.close()
    assert gate.batches == [["first"], ["a", "d", "b"], ["far"], ["c"]]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_what_is_queued_waits_for_company_as_long_as_it_may_and_not_once_a_batch_is_full():
    gate, clock = Gate(open_=False), Clock()
    scheduler = Scheduler([gate], 100, 8.0, 8, clock)
    clock.now += 8.0  # a batch runs: what comes now is queued
    scheduler.submit("running", 100)
    assert gate.begun.wait(30)
    scheduler.submit("early", 60)
    assert scheduler._left() == 8.0
    clock.now += 6.0
    assert scheduler._left() == 2.0
    clock.now += 3.0
    assert scheduler._left() < 0
    clock.now -= 3.0
    scheduler.submit("late", 60)
    assert scheduler._left() == 0.0, "together they fill a batch"
    gate.go.set()
    scheduler.close()
    assert gate.batches == [["running"], ["early"], ["late"]]


def test_a_stream_that_is_free_takes_a_request_when_its_wait_is_over():
    gate = Gate()
    scheduler = Scheduler([gate], 100, 0.01, 8)
    scheduler.submit("alone", 60)
    assert gate.begun.wait(30)
    scheduler.close()


def test_a_deadline_that_the_queue_takes_is_refused_at_once():
    gate, clock, ended = Gate(), Clock(), threading.Event()

    def run(batch):
        gate(batch)
        clock.now += 0.02
        ended.set()

    scheduler = Scheduler([run], 100, 0.0, 8, clock)
    scheduler.submit("first", 10, clock.now + 1)  # nothing has been measured: anything may be met
    assert ended.wait(30)
    until_idle(scheduler)
    gate.go.clear()
    gate.begun.clear()
    scheduler.submit("long", 10_000)
    assert gate.begun.wait(30)
    with pytest.raises(DeadlineExceeded, match=r"deadline_ms: .* left and .* needed"):
        scheduler.submit("hopeless", 10, clock.now + 0.5)  # 10 000 tokens at 2 ms each are ahead
    scheduler.submit("patient", 10, clock.now + 3600)
    scheduler.submit("unhurried", 10)
    gate.go.set()
    scheduler.close()
    assert [item for batch in gate.batches for item in batch] == ["first", "long", "patient", "unhurried"]


def until(done):
    """Within 30 s on any machine."""
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def until_idle(scheduler):
    """The cost of the last batch is entered when nothing is ahead any more."""
    until(lambda: not scheduler._queue and not scheduler._running)


def test_estimates_that_were_too_low_leave_a_margin_for_a_second_while_something_is_ahead():
    gate, clock = Gate(), Clock()

    def run(batch):
        gate(batch)
        clock.now += 0.1 if batch[0] == "stall" else 0.001

    scheduler = Scheduler([run], 100, 0.0, 8, clock)
    for item in ["quick", *(["stall"] + ["quick"] * 9) * 5]:  # one of ten takes longer than estimated
        scheduler.submit(item, 1)
        until_idle(scheduler)
    scheduler.submit("nothing is ahead of it", 1, clock.now + 0.07)
    until_idle(scheduler)
    gate.go.clear()
    gate.begun.clear()
    scheduler.submit("running", 1)
    assert gate.begun.wait(30)
    with pytest.raises(DeadlineExceeded):
        scheduler.submit("estimates have been wrong by more", 1, clock.now + 0.07)
    clock.now += 1.1
    scheduler.submit("that is over", 1, clock.now + 0.07)
    gate.go.set()
    scheduler.close()
    assert gate.batches[-1] == ["that is over"]


def test_a_server_whose_first_requests_were_slow_takes_requests_with_deadlines_at_once():
    clock, answered = Clock(), []

    def run(batch):
        clock.now += 0.001 if answered else 2.0  # the first compiles
        answered.extend(batch)

    scheduler = Scheduler([run], 100, 0.0, 8, clock)
    for number in range(5):
        scheduler.submit(number, 50, clock.now + 0.2 if number else None)
        until_idle(scheduler)
    scheduler.close()
    assert answered == [0, 1, 2, 3, 4]


def test_no_more_wait_than_the_limit_allows():
    gate = Gate(open_=False)
    scheduler = Scheduler([gate], 1, 0.0, 1)
    scheduler.submit("running", 1)
    assert gate.begun.wait(30)
    for number in range(LIMIT):
        scheduler.submit(number, 1)
    with pytest.raises(QueueFull, match=f"queue: has {LIMIT} requests"):
        scheduler.submit("one too many", 1)
    gate.go.set()
    scheduler.close()
    assert len(gate.batches) == 1 + LIMIT


def test_streams_run_at_once():
    both = threading.Barrier(2)
    scheduler = Scheduler([lambda batch: both.wait(30)] * 2, 1, 0.0, 1)
    scheduler.submit("a", 1)
    scheduler.submit("b", 1)  # neither ends before the other has begun
    scheduler.close()
    assert not both.broken


def test_with_patience_who_is_due_first_goes_first_and_the_rest_as_they_came():
    gate, clock = Gate(open_=False), Clock()
    scheduler = Scheduler([gate], 1, 0.0, 1, clock, patience_s=5.0)
    scheduler.submit("running", 1)
    assert gate.begun.wait(30)
    for name, due in (("unhurried", None), ("late", 7.0), ("soon", 1.0), ("as soon", 1.0), ("ahead", 3.0)):
        clock.now += 0.001
        if name == "ahead":  # ordered by when it is due, and not refused for it
            scheduler.submit(name, 1, due_s=1000.0 + due)
        else:
            scheduler.submit(name, 1, None if due is None else 1000.0 + due)
    scheduler.withdraw("nobody's")
    gate.go.set()
    scheduler.close()
    assert gate.batches == [["running"], ["soon"], ["as soon"], ["ahead"], ["unhurried"], ["late"]]


def test_what_is_due_later_makes_nobody_late_and_what_is_withdrawn_does_not_run():
    gate, clock = Gate(), Clock()

    def run(batch):
        gate(batch)
        clock.now += 0.01 * sum(size for _, size in batch)

    scheduler = Scheduler([run], 1, 0.0, 1, clock, patience_s=5.0)
    scheduler.submit(("first", 10), 10)
    until_idle(scheduler)
    gate.go.clear()
    gate.begun.clear()
    scheduler.submit(("running", 1), 1)
    assert gate.begun.wait(30)
    long = ("long", 1000)  # ten seconds of work
    scheduler.submit(long, 1000, due_s=clock.now + 60)
    assert scheduler.ahead_s(clock.now + 59) == pytest.approx(0.01)
    assert scheduler.ahead_s(clock.now + 61) == pytest.approx(10.01)
    scheduler.submit(("quick", 1), 1, clock.now + 1)
    scheduler.withdraw(long)
    gate.go.set()
    scheduler.close()
    assert [item for batch in gate.batches for item, _ in batch] == ["first", "running", "quick"]


def test_what_is_offered_runs_when_nothing_else_does_and_after_its_pause():
    gate, clock = Gate(open_=False), Clock()
    scheduler = Scheduler([gate], 100, 0.0, 1, clock)
    scheduler.submit("first", 10)
    assert gate.begun.wait(30)
    scheduler.offer("offered", 10, 0.2)
    scheduler.submit("second", 10)
    clock.now += 1.0
    gate.go.set()
    until(lambda: len(gate.batches) == 2)
    until_idle(scheduler)
    assert gate.batches == [["first"], ["second"]], "its pause begins with the end of the last batch"
    clock.now += 0.2
    until(lambda: gate.batches[2:] == [["offered"]])
    until_idle(scheduler)
    scheduler.offer("never", 10, 0.2)
    scheduler.close()
    assert len(gate.batches) == 3


def test_what_is_offered_is_neither_counted_nor_learnt_from():
    gate, clock = Gate(), Clock()
    scheduler = Scheduler([gate], 100, 0.0, 1, clock)
    before = metrics.BATCH_TOKENS._counts.copy()
    scheduler.offer("offered", 64, 0.0)
    until(lambda: gate.batches == [["offered"]])
    until_idle(scheduler)
    assert metrics.BATCH_TOKENS._counts == before
    assert not scheduler._cost.known and not scheduler._lateness._seen
    scheduler.close()


def test_a_request_that_comes_while_what_was_offered_runs_is_next():
    gate = Gate(open_=False)
    scheduler = Scheduler([gate], 100, 0.0, 1)
    scheduler.offer("offered", 64, 0.0)
    assert gate.begun.wait(30)
    scheduler.offer("more", 64, 0.0)
    scheduler.submit("request", 10)
    gate.go.set()
    until(lambda: len(gate.batches) == 3)
    scheduler.close()
    assert gate.batches == [["offered"], ["request"], ["more"]]


def test_while_one_stream_computes_the_other_takes_nothing_that_is_offered():
    scheduler = Scheduler(gates := [Gate(open_=False), Gate(open_=False)], 100, 0.0, 1)
    scheduler.submit("request", 10)
    until(lambda: any(gate.begun.is_set() for gate in gates))
    scheduler.offer("offered", 10, 0.0)
    time.sleep(0.05)  # it would take it now
    scheduler.submit("another", 10)
    until(lambda: all(gate.begun.is_set() for gate in gates))
    assert sorted(gate.batches for gate in gates) == [[["another"]], [["request"]]]
    for gate in gates:
        gate.go.set()
    until(lambda: sum(len(gate.batches) for gate in gates) == 3)
    scheduler.close()
