"""Events that came since: each is learnt in one window alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.data.windows import recent


def one_event_after_the_other(
    offsets: list[int], learnt: list[int], size: int
) -> Iterator[tuple[int, list[int]]]:
    """As `recent`: an event goes to the window before it where it is of the same user and near enough."""
    window: list[int] = []
    owner = -1
    for event in learnt:
        user = next(n for n, stop in enumerate(offsets[1:]) if event < stop)
        if window and (user != owner or event >= window[0] + size // 2):
            yield owner, window
            window = []
        owner, window = user, [*window, event]
    yield owner, window


@given(st.lists(st.lists(st.booleans(), max_size=30), min_size=1, max_size=5), st.integers(2, 9))
def test_windows_of_new_events(users: list[list[bool]], size: int) -> None:
    offsets, learnt = np.cumsum([0, *map(len, users)]), np.flatnonzero(np.concatenate([[], *users]))
    if len(learnt):
        found = [(user, events.tolist()) for user, events in recent(offsets, learnt, size)]
        assert found == list(one_event_after_the_other(offsets.tolist(), learnt.tolist(), size))
