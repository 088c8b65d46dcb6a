"""What graphs of HSTU rankers read of pairs of tokens: `marks` int64[3, ...], all zeros where there is no token.

They are the rows of the biases by position and by time, and 1 where the first token sees the second. U tokens of a
user, int32[U, token_size], of which the f features come first.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from genrec.rank.hstu import FEATURE, TIME, HstuConfig, Ints, time_bucket

BLOCK = 64  # rows
Marks = NDArray[np.int64]


def user_marks(config: HstuConfig, tokens: Ints, first: int = 0, span: int = 0) -> Marks:
    """[3, U - first, U]: the user's tokens from `first` on, towards all of them; [3, span, span] with a `span` >= U.

    Features see each other. An event sees them, itself and those before it.
    """
    count, features, most = len(tokens), _features(tokens), config.max_history + 1
    rows = count - first
    marks = np.zeros((3, span or rows, span or count), np.int64)
    near, since, seen = marks[:, :rows, :count]
    times = tokens[:, TIME]
    for row in range(0, rows, BLOCK):  # of many tokens, differences of all pairs would leave the caches
        some = slice(row, row + BLOCK)
        since[some] = time_bucket(times[first:][some, None] - times, config.times)
    event = max(first, features)  # the first row of one
    seen[:, :features] = 1
    near[event - first :, :features] = np.minimum(np.arange(event, count) - features + 1, most)[:, None]
    # Of two events the difference of places alone counts: each row is the one before it, moved by one.
    behind = np.arange(event - count + 1, count - features)
    for into, each in ((near, behind.clip(0, most)), (seen, behind >= 0)):
        if event < count:
            into[event - first :, features:] = sliding_window_view(each, count - features)[:, ::-1]
    return marks


def candidate_marks(config: HstuConfig, tokens: Ints, now: int, span: int = 0) -> Marks:
    """[3, U]: any token at `now`, behind all of the user's; [3, span] with a `span` >= U."""
    count, features = len(tokens), _features(tokens)
    marks = np.zeros((3, span or count), np.int64)
    near, since, seen = marks[:, :count]
    position = np.maximum(np.arange(count) - features + 1, 0)
    near[:] = np.minimum(count - features + 1 - position, config.max_history + 1)
    since[:] = time_bucket(now - tokens[:, TIME], config.times)
    seen[:] = 1
    return marks


def _features(tokens: Ints) -> int:
    return int((tokens[:, FEATURE] > 0).sum())
