"""The margin of estimates: the share of a window that may exceed it, and that a bad time ends."""

import numpy as np
import pytest

from genrec.schedule.lateness import MOST, WINDOW_S, Lateness


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
