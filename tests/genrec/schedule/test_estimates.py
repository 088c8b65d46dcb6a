"""What is queued and runs, as it is estimated: in full batches, on all streams; and what waits for such a batch."""

from __future__ import annotations

import pytest

from genrec.schedule.scheduler import Scheduler
from tests.genrec.schedule.test_schedule import Clock, Gate, until


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(("queued", "tokens", "batches"), [(8, 10, 2), (3, 60, 2), (5, 20, 2), (4, 20, 1)])
def test_what_is_queued_goes_in_full_batches_that_streams_share(streams, queued, tokens, batches):
    """A batch takes 1 s and 10 ms a token; it has 100 tokens at most, and 4 requests."""
    gates = [Gate(open_=False) for _ in range(streams)]
    scheduler = Scheduler(gates, 100, 0.0, 4, Clock())
    for size in [10, 100] * 20:
        scheduler._cost.learn(size, 1 + 0.01 * size)
    for begun in range(1, streams + 1):
        scheduler.submit("running", 10)
        until(lambda begun=begun: sum(gate.begun.is_set() for gate in gates) == begun)
    assert scheduler.ahead_s(2000.0) == pytest.approx(1.1, rel=0.05), "of each stream its own batch"
    for number in range(queued):
        scheduler.submit(number, tokens)
    expected = 1.1 + (batches + 0.01 * queued * tokens) / streams
    assert scheduler.ahead_s(2000.0) == pytest.approx(expected, rel=0.05)
    for gate in gates:
        gate.go.set()
    scheduler.close()


def test_a_stream_that_is_free_lets_a_request_wait_for_company():
    gate = Gate()
    scheduler = Scheduler([gate], 100, 8.0, 8, Clock())  # no time passes
    scheduler.submit("early", 50)
    until(lambda: scheduler._changed._waiters)  # the stream has seen it
    scheduler.submit("late", 50)
    assert gate.begun.wait(30)
    scheduler.close()
    assert gate.batches == [["early", "late"]]
