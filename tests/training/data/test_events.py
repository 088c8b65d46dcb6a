"""Events that came since: each is learnt in one window alone, and users who are new are told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.events import Came, Events, came, events_per_user, merged, of_users, stored_events
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


Row = tuple[str, int, int]  # user, item, second


def events(rows: list[Row]) -> Events:
    users = list(dict.fromkeys(user for user, *_ in rows))
    columns = [[users.index(user), item, second] for user, item, second in rows]
    return Events(Path("e"), pa.array(users, pa.string()), *np.array(columns, np.int64).reshape(-1, 3).T)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_stored_and_what_came_are_one_history_per_user(
    tmp_path: Path, seed: int, timed: bool
) -> None:
    """Against a list that is gone through; where nothing is known of times, what is stored comes first."""
    draw = random.Random(seed)
    least = 0 if timed else -100

    def rows(users: str, most: int) -> list[Row]:
        return [
            (draw.choice(users), draw.randrange(5), draw.randrange(6)) for _ in range(draw.randint(1, most))
        ]

    stored = sorted(rows("abcdef", 60), key=lambda row: (row[0], row[2]))
    stored = list(dict.fromkeys(stored)) if timed else stored
    files, path = [rows("bcdxy", 9) for _ in range(3)], tmp_path / "histories.parquet"
    users = sorted({user for user, *_ in stored})
    of_each = [[row for row in stored if row[0] == user] for user in users]
    table = pa.table({"user": users, "items": [[item for _, item, _ in of] for of in of_each]})
    if timed:
        table = table.append_column("times", pa.array([[second for *_, second in of] for of in of_each]))
    pq.write_table(table, path, row_group_size=2)
    parts = [events(of) for of in files]

    counted, counts = events_per_user(path, parts)
    wanted = Counter(user for user, *_ in [*stored, *(row for of in files for row in of)])
    assert dict(zip(counted.to_pylist(), counts.tolist(), strict=True)) == wanted

    came_last = parts[-1].users
    found = merged([stored_events(path, came_last), *(of_users(part, came_last) for part in parts)])
    asked = set(came_last.to_pylist())
    if not timed:  # any seconds before all others, in their order
        stored = [(user, item, n + least) for n, (user, item, _) in enumerate(stored)]
    sources = [[row for row in of if row[0] in asked] for of in (stored, *files)]
    every = [(*row, file) for file, of in enumerate(sources) for row in of]
    order = dict.fromkeys(user for user, *_ in every)
    spans = zip(
        found.users.to_pylist(),
        *(found.offsets[part].tolist() for part in (slice(-1), slice(1, None))),
        strict=True,
    )
    shown = {user: slice(start, stop) for user, start, stop in spans if stop > start}
    assert list(shown) == list(order)
    for user, span in shown.items():
        mine: list[tuple[int, int, int, int]] = []
        for place, (whose, item, second, file) in enumerate(every):
            if whose == user and (item, second) not in [each[:2] for each in mine]:
                mine.append((item, second, file, place))
        mine.sort(key=lambda each: each[1])
        told = [getattr(found, name)[span].tolist() for name in ("item", "time", "file", "order")]
        for place, known in enumerate(zip(*mine, strict=True)):
            assert told[place] == list(known) or (place == 1 and not timed)
