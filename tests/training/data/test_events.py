"""Events that came since: each is learnt in one window alone, and users who are new are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.events import Came, Events, came
from training.data.windows import recent
from training.further import tell_users
from training.sharded.world import World


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


@pytest.mark.parametrize(
    ("files", "found", "said"),
    [
        ([["7", "007"], ["8", "007"]], Came(2, 1, "007", "7"), "users of the files: 2 known, 1 new, '007' first\n"),
        ([["8"], ["8", "9"]], Came(2, 0, "", "7"), "users of the files: 2 known, 0 new\n"),
        (
            [["007", "008"]],
            Came(0, 2, "007", "7"),
            "warning: the data set has no user of the files: '007' is none, '7' one; are they spelled as there?\n",
        ),
    ],
)  # fmt: skip
def test_users_who_are_new_are_told(
    files: list[list[str]], found: Came, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    none = np.zeros(0, np.int64)
    of = came(pa.array(["7", "8", "9"]), [Events(Path("e"), pa.array(f), none, none, none) for f in files])
    assert of == found
    tell_users(World(), of)
    assert capsys.readouterr().out == said
