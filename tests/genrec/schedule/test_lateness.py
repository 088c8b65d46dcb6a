"""The margin of estimates: the share of a window that may exceed it, and that a bad time ends."""

import threading

import numpy as np
import pytest

from genrec.schedule.lateness import MOST, WINDOW_S, Lateness
from genrec.schedule.scheduler import Scheduler


@pytest.mark.parametrize("seed", range(5))
def test_one_in_twenty_exceeds_it(seed: int) -> None:
    late = np.random.default_rng(seed).normal(0.0, 0.01, 200)
    lateness = Lateness()
    lateness.add(5.0, late.tolist())
    assert np.mean(late > lateness.margin_s(5.0)) == pytest.approx(0.05, abs=0.006)


def test_one_batch_that_met_a_stall_does_not_move_it() -> None:
    lateness = Lateness()
    lateness.add(1.0, [0.01] * 200)
    lateness.add(1.1, [0.5] * 8)
    assert lateness.margin_s(1.1) == 0.01
    lateness.add(1.2, [0.5] * 8)
    assert lateness.margin_s(1.2) == 0.5


def test_what_was_early_is_no_reason_to_promise_more() -> None:
    lateness = Lateness()
    lateness.add(1.0, [-0.2] * 9)
    assert lateness.margin_s(1.0) == 0


def test_a_bad_time_is_over_a_second_later() -> None:
    lateness = Lateness()
    assert lateness.margin_s(0.0) == 0
    lateness.add(1.0, [0.5] * (2 * MOST))
    assert lateness.margin_s(1.0 + WINDOW_S) == 0.5
    assert lateness.margin_s(1.01 + WINDOW_S) == 0


def test_what_only_has_its_place_in_the_queue_teaches_nothing() -> None:
    """A part of a pre-inference, which rankings that are due sooner overtake."""
    now, taught, held, go = [1000.0], threading.Event(), threading.Event(), threading.Event()

    def run(batch: list[str]) -> None:
        {"taught": taught, "held": held}.get(batch[0], threading.Event()).set()
        assert batch != ["held"] or go.wait(60)
        now[0] += 0.01

    scheduler = Scheduler([run], 1, 0.0, 1, lambda: now[0], patience_s=0.05)
    for item in [*"abcdefgh", "taught"]:
        scheduler.submit(item, 1)
    assert taught.wait(60)
    now[0] += 2 * WINDOW_S
    scheduler.submit("held", 1)
    assert held.wait(60)
    scheduler.submit("part", 1, due_s=now[0] + 10)
    for item in "abcdefghij":
        scheduler.submit(item, 1, now[0] + 1)
    go.set()
    scheduler.close()
    assert scheduler._lateness.margin_s(now[0]) < 0.02
