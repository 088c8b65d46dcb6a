"""Ratings of an artifact's data, and of files that came since, with what is known of the users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from training.cutting import first_of_duplicates
from training.data import RATINGS, TIMES, check_times
from training.tables import ITEM, RATING, USER, column, read_table, required
from training.times import seconds, unit_of, whole_seconds
from training.users import features_of

HELD_OUT = 10  # of every user, the newest; of short histories half
HISTORIES = "histories.parquet"


@dataclass(frozen=True, eq=False)
class Ratings:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `items` int64 (catalogue row),
    `ratings` int64 (1 to `levels`) and `times` int64 (seconds). Of users `features` int64[U, F], numbered from 1 on,
    `sizes` how many there are; `numbers` says which value of which feature has which number, and 0 is unknown. `file`
    int64 says of every event where it was read: 0 is the data set, 1 the first file after it. A rating of at least one
    of `tasks` is liked so.
    """

    offsets: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray
    features: np.ndarray
    sizes: int
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    file: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    levels: int = 5
    tasks: tuple[int, ...] = (4, 5)

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


def load_ratings(artifact: Path, catalogue: Catalogue, more: Sequence[Path] = ()) -> Ratings:
    """Of the data that `genrec data` made `artifact` of, and of `more` files: user, item, rating, timestamp.

    Users of `more` may be others. Events of one second stay in file order; the same user, item and second count once.
    Raises InputError, ArtifactError.
    """
    ids, lengths, base = _read_histories(artifact / HISTORIES)
    parts, levels = [base], int(base.rating.max())
    if more:
        items = pq.read_table(check_regular(artifact / "items.parquet"))
        known = items["key"].combine_chunks(), items["item_id"].to_numpy()
        parts += [_read_events(each, *known, levels) for each in more]
    who = pa.concat_arrays([part.user for part in parts]).dictionary_encode()
    user = who.indices.to_numpy()
    user = np.concatenate((np.repeat(user[: len(ids)], lengths), user[len(ids) :]))
    item, rating, time = (np.concatenate(values) for values in list(zip(*parts, strict=True))[1:])
    order = np.lexsort((time, user))  # stable
    # What is in a later file again is not new: it would be asked for with its own rating in the history.
    order = order[first_of_duplicates(user[order], item[order], time[order])]
    features, numbers = features_of(artifact, ids)
    new = np.zeros((len(who.dictionary) - len(ids), features.shape[1]), np.int64)
    return Ratings(
        np.concatenate(([0], np.cumsum(np.bincount(user[order])))),
        catalogue.rows_of(item)[order],
        rating[order],
        time[order],
        np.concatenate((features, new)),
        sum(map(len, numbers.values())),
        numbers,
        np.repeat(np.arange(len(parts)), [len(part.item) for part in parts])[order],
        levels,
        usual_tasks(levels),
    )


def _read_histories(path: Path) -> tuple[np.ndarray, np.ndarray, _Events]:
    """Users' ids and how many events each has, int64[U]; and their events, of which `user` is string[U]."""
    try:
        table = pq.read_table(check_regular(path)).combine_chunks()
        if missing := [name for name in (RATINGS.name, TIMES.name) if name not in table.column_names]:
            limit = "what `genrec data` makes of interactions with rating and timestamp"
            raise InputError(str(path), f"has no {missing[0]}", limit)
        lists = [table[name].combine_chunks() for name in ("items", RATINGS.name, TIMES.name)]
        check_times(lists[0], lists[2])
        if not lists[1].value_lengths().equals(lists[0].value_lengths()):
            raise ValueError("not every item has a rating")
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error
    keys = table["user"].combine_chunks().cast(pa.string())
    found = (each.flatten().to_numpy().astype(np.int64) for each in lists)
    return table["user_id"].to_numpy(), lists[0].value_lengths().to_numpy(), _Events(keys, *found)


class _Events(NamedTuple):
    """Of a file, in its order: `user` string[n], item id, rating and second, int64[n]."""

    user: pa.Array
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray


def _read_events(path: Path, keys: pa.Array, ids: np.ndarray, levels: int) -> _Events:
    table = read_table(path)
    times = seconds(table, path)
    times = whole_seconds(times, unit_of(float(np.abs(times).max())))
    row = pc.index_in(required(table, path, ITEM), keys)
    if row.null_count:
        problem = f"has {row.null_count} events of unknown items"
        raise InputError(str(path), problem, "items of items.parquet")
    return _Events(required(table, path, USER), ids[row.to_numpy()], _ratings(table, path, levels), times)


def _ratings(table: pa.Table, path: Path, levels: int) -> np.ndarray:
    field, limit = f"{path}, column rating", f"whole numbers, 1 to {levels}"
    given = column(table, path, RATING).combine_chunks()
    try:
        ratings = given.cast(pa.float64()).to_numpy(zero_copy_only=False)  # null is NaN
    except pa.ArrowException as error:
        raise InputError(field, f"cannot be read: {error}", limit) from error
    odd = ratings[~np.isin(ratings, np.arange(1, levels + 1))]
    if len(odd):
        raise InputError(field, f"has {odd[0]}", limit)
    return ratings.astype(np.int64)
