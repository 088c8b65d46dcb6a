"""Ratings of an artifact's data, and of files that came since, with what is known of the users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.rank.user_features import Numbers
from training.data.events import COLUMNS, Came, Events, came, events_of, keys_of_items, merged
from training.data.histories import RATINGS, TIMES, check_times
from training.data.interactions import ratings_in
from training.data.tables import RATING, column, read_rows, where
from training.data.users import features_of

HELD_OUT = 10  # of every user, the newest; of short histories half
HISTORIES = "histories.parquet"


@dataclass(frozen=True, eq=False)
class Ratings:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `items` int64 (catalogue row),
    `ratings` int64 (1 to `levels`) and `times` int64 (seconds). Of users `features` int64[U, F], numbered from 1 on,
    `sizes` how many there are; `numbers` says which value of which feature has which number, and 0 is unknown. `file`
    int64 says of every event where it was read: 0 is the data set, 1 the first file after it. A rating of at least one
    of `tasks` is liked so. `came` are the users of the files.
    """

    offsets: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray
    features: np.ndarray
    sizes: int
    numbers: Numbers = field(default_factory=dict)
    file: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    levels: int = 5
    tasks: tuple[int, ...] = (4, 5)
    came: Came = field(default_factory=Came)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def users(self) -> np.ndarray:
        """Of every event its user: int64."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def held(self) -> np.ndarray:
        """How many events of every user are held out: int64[U]."""
        return held_of(np.diff(self.offsets))

    @property
    def held_out(self) -> np.ndarray:
        """Which events those are, a user's newest: bool."""
        return np.arange(len(self.items)) >= (self.offsets[1:] - self.held)[self.users]

    def labels(self, events: np.ndarray) -> np.ndarray:
        """Whether `events` int64[n] are liked: bool[n, tasks]."""
        return self.ratings[events, None] >= np.array(self.tasks)


def held_of(lengths: np.ndarray) -> np.ndarray:
    """Events held out of histories of int64[n] events."""
    return np.minimum(HELD_OUT, lengths // 2)


def usual_tasks(levels: int) -> tuple[int, ...]:
    """Of ratings 1 to `levels` those that are liked: from four fifths on, and the highest. Of 5: 4, and 5."""
    return tuple(sorted({-(-4 * levels // 5), levels}))


def check_tasks(ratings: Ratings) -> None:
    """Raises InputError for a task that all ratings or none fulfil: there is nothing to learn."""
    lowest = int(ratings.ratings.min())
    for least in ratings.tasks:
        if not lowest < least <= ratings.levels:
            problem = f"has {least}, where ratings are {lowest} to {ratings.levels}"
            raise InputError("tasks", problem, "ratings above the lowest, at most the highest")
    if len(set(ratings.tasks)) < len(ratings.tasks):
        raise InputError("tasks", f"are {list(ratings.tasks)}", "every rating once")


def load_ratings(
    artifact: Path, catalogue: Catalogue, more: Sequence[Path] = (), numbers: Numbers | None = None
) -> Ratings:
    """Of the data that `genrec data` made `artifact` of, and of `more` files: user, item, rating, timestamp.

    `numbers` of values of features are those of a model that is there; without them they are made here. Users of `more`
    may be others. Events of one second stay in file order; the same user, item and second count once.
    Raises InputError, ArtifactError.
    """
    ids, base, first = _read_histories(artifact / HISTORIES)
    parts, given, levels = [base], [first], int(first.max())
    if more:
        keys, item_ids = keys_of_items(artifact)
        tables = [read_rows(path, f"{COLUMNS}, rating") for path in more]
        parts += [events_of(table, path, keys, item_ids) for table, path in zip(tables, more, strict=True)]
        given += [_ratings(table, path, levels) for table, path in zip(tables, more, strict=True)]
    of = merged(parts)
    features, numbers = features_of(artifact, ids, numbers)
    new = np.zeros((len(of.users) - len(ids), features.shape[1]), np.int64)
    return Ratings(
        of.offsets,
        catalogue.rows_of(of.item),
        np.concatenate(given)[of.order],
        of.time,
        np.concatenate((features, new)),
        sum(map(len, numbers.values())),
        numbers,
        of.file,
        levels,
        usual_tasks(levels),
        came(base.users, parts[1:]) if more else Came(),
    )


def _read_histories(path: Path) -> tuple[np.ndarray, Events, np.ndarray]:
    """Users' ids int64[U], their events, and ratings int64[n]. Raises InputError, ArtifactError."""
    try:
        table = pq.read_table(check_regular(path)).combine_chunks()
        if missing := [name for name in (RATINGS.name, TIMES.name) if name not in table.column_names]:
            limit = "what `genrec data` makes of interactions with rating and timestamp"
            raise InputError(str(path), f"has no {missing[0]}", limit)
        lists = [table[name].combine_chunks() for name in ("items", TIMES.name, RATINGS.name)]
        check_times(*lists[:2])
        lengths = lists[0].value_lengths()
        if not lists[2].value_lengths().equals(lengths):
            raise ValueError("not every item has a rating")
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error
    keys, user = table["user"].combine_chunks(), np.repeat(np.arange(len(table)), lengths.to_numpy())
    items, times, ratings = (each.flatten().to_numpy().astype(np.int64) for each in lists)
    return table["user_id"].to_numpy(), Events(path, keys, user, items, times), ratings


def _ratings(table: pa.Table, path: Path, levels: int) -> np.ndarray:
    """Of a table of events: int64[n]. Raises InputError."""
    given, ratings = column(table, path, RATING), ratings_in(table, path).astype(np.int64)
    odd = np.flatnonzero((ratings < 1) | (ratings > levels))
    if len(odd):
        row = int(odd[0])
        problem = f"{where(path, row)} is {given[row].as_py()!r}"
        raise InputError(f"{path}, column rating", problem, f"whole numbers, 1 to {levels}")
    return ratings
