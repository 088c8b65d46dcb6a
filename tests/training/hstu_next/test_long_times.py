"""Of a user who was away for a lifetime, what he did since is told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from genrec.rank.hstu import LIMIT
from tests.training.hstu_next.test_hstu_next import some_timed
from training.hstu_next.batches import events_of


@pytest.mark.parametrize("away", [2**32, 2**40])
def test_a_user_who_was_away_for_a_lifetime_is_read(away: int) -> None:
    timed, span = some_timed(), np.array([[0, 12]])
    times = np.append(timed.times[0] - away, timed.times[1:])
    found = events_of(replace(timed, times=times), span)
    since = LIMIT - 1 - (times[12] - times[1:13])
    assert found.layout.time.tolist() == [0, *since[:-1]]
    assert found.wait.tolist() == np.diff(since, prepend=0).tolist()
