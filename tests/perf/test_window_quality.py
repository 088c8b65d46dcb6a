"""Whose windows the benchmark of windows compares."""

from __future__ import annotations

import numpy as np

from perf.quality.window_quality import WINDOWS, longer_than
from training.data.histories import Histories


def test_only_users_with_more_items_than_are_read_are_asked_for():
    items = np.arange(12)
    histories = Histories(np.array([7, 8, 9]), items, np.array([0, 3, 7, 12]))
    # Without the newest item, which is asked for, they have 2, 3 and 4.
    assert longer_than(histories, 2).user_ids.tolist() == [8, 9]
    assert longer_than(histories, 3).user_ids.tolist() == [9]


def test_windows_read_at_most_so_many_items_and_move_by_their_steps():
    starts = {name: [start(items, 8) for items in range(8, 14)] for name, start in WINDOWS.items()}
    assert starts["newest"] == [0, 1, 2, 3, 4, 5]
    assert starts["steps of 1/4"] == [0, 2, 2, 4, 4, 6]
    assert starts["steps of 1/2"] == [0, 4, 4, 4, 4, 8]
