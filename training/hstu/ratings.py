"""Ratings of an artifact's data, and of files that came since, with what is known of the users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from genrec.rank.user_features import Numbers
from training.data.events import COLUMNS, Came, Events, Merged, came, events_of, keys_of_items, merged
from training.data.histories import BATCH_USERS, RATINGS, TIMES, check_times, room_for, stored_items
from training.data.interactions import ratings_in
from training.data.tables import RATING, column, read_rows, where
from training.data.users import features_of

HELD_OUT = 10  # of every user, the newest; of short histories half
HISTORIES = "histories.parquet"


@dataclass(frozen=True, eq=False)
class Ratings:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `items` int64 (catalogue row),
    `ratings` int64 (1 to `levels`) and `times` int64 (seconds). Of users `features` int64[U, F], numbered from 1 on,
    `sizes` how many there are; `numbers` says which value of which feature has which number, and 0 is unknown. Where
    there are files, `file` int64 says of every event where it was read: 0 is the data set, 1 the first file after it. A
    rating of at least one of `tasks` is liked so. `came` are the users of the files.
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

    def users_of(self, events: np.ndarray) -> np.ndarray:
        """Of events int64[n] the users: int64[n]."""
        return np.searchsorted(self.offsets, events, "right") - 1

    @property
    def held(self) -> np.ndarray:
        """How many events of every user are held out: int64[U]."""
        return held_of(np.diff(self.offsets))

    @property
    def held_out(self) -> np.ndarray:
        """Which events those are, a user's newest: bool."""
        counts = np.stack((np.diff(self.offsets) - self.held, self.held), 1)
        return np.repeat(np.tile((False, True), len(self)), counts.ravel())

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


class Rated(NamedTuple):
    """Events, and the rating of each: int64[n]."""

    events: Events
    ratings: np.ndarray

    def of(self, kept: np.ndarray) -> Rated:
        """The events of those of its users whom `kept` bool[u] says."""
        users, some = self.events.users.filter(pa.array(kept)), kept[self.events.user]
        number = np.cumsum(kept) - 1
        events = self.events._replace(
            users=users,
            user=number[self.events.user[some]],
            item=self.events.item[some],
            time=self.events.time[some],
        )
        return Rated(events, self.ratings[some])


def load_ratings(
    artifact: Path, catalogue: Catalogue, more: Sequence[Path] = (), numbers: Numbers | None = None
) -> Ratings:
    """Of the data that `genrec data` made `artifact` of, and of `more` files: user, item, rating, timestamp.

    `numbers` of values of features are those of a model that is there; without them they are made here. Users of `more`
    may be others. Events of one second stay in file order; the same user, item and second count once. What is of events
    is made in blocks of users, and mapped from a file where there are many. Raises InputError, ArtifactError.
    """
    count, levels = _stored(artifact / HISTORIES)
    files = _read_files(artifact, more, levels)
    room = count + sum(len(each.ratings) for each in files)
    kept, at = [room_for(room) for _ in range(4 if more else 3)], 0
    ids, keys, lengths = [], [], [np.zeros(1, np.int64)]
    for of_block, of, ratings in _blocks(artifact / HISTORIES, files):
        found = (catalogue.rows_of(of.item), ratings, of.time, of.file)
        for values, each in zip(kept, found, strict=False):  # the last one only beside more files
            values[at : at + len(each)] = each
        at += len(ratings)
        ids.append(of_block)
        keys.append(of.users[: len(of_block)])
        lengths.append(np.diff(of.offsets))
    offsets, known = np.cumsum(np.concatenate(lengths)), np.concatenate(ids)
    features, numbers = features_of(artifact, known, numbers)
    new = np.zeros((len(offsets) - 1 - len(known), features.shape[1]), np.int64)
    return Ratings(
        offsets,
        *(values[:at] for values in kept[:3]),
        np.concatenate((features, new)),
        sum(map(len, numbers.values())),
        numbers,
        kept[3][:at] if more else np.zeros(0, np.int64),
        levels,
        usual_tasks(levels),
        came(pa.concat_arrays(keys), [each.events for each in files]) if more else Came(),
    )


def _stored(path: Path) -> tuple[int, int]:
    """How many events `histories.parquet` has, at most, and the highest rating. Raises InputError, ArtifactError."""
    try:
        with pq.ParquetFile(check_regular(path)) as file:
            names = file.schema_arrow.names
            if missing := [name for name in (RATINGS.name, TIMES.name) if name not in names]:
                limit = "what `genrec data` makes of interactions with rating and timestamp"
                raise InputError(str(path), f"has no {missing[0]}", limit)
            batches = file.iter_batches(BATCH_USERS, columns=[RATINGS.name])
            highest = max(pc.max(each[RATINGS.name].flatten()).as_py() for each in batches)
            return stored_items(file.metadata), int(highest)
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error


def _read_files(artifact: Path, paths: Sequence[Path], levels: int) -> list[Rated]:
    """Of files that came since. Raises InputError, ArtifactError."""
    if not paths:
        return []
    keys, item_ids = keys_of_items(artifact)
    tables = [read_rows(path, f"{COLUMNS}, rating") for path in paths]
    return [
        Rated(events_of(table, path, keys, item_ids), _ratings(table, path, levels))
        for table, path in zip(tables, paths, strict=True)
    ]


def _blocks(path: Path, files: Sequence[Rated]) -> Iterator[tuple[np.ndarray, Merged, np.ndarray]]:
    """Of some users after the other, those of `histories.parquet` first: their ids, int64[u], which new users have none
    of; all their events; and the ratings of these, int64[n]. Raises ArtifactError.
    """
    known = [np.zeros(len(each.events.users), bool) for each in files]
    try:
        with pq.ParquetFile(check_regular(path)) as file:
            names = ["user_id", "user", "items", TIMES.name, RATINGS.name]
            for batch in file.iter_batches(BATCH_USERS, columns=names):
                base = _of_batch(path, batch)
                here = [_among(each.events.users, base.events.users) for each in files]
                known = [was | now for was, now in zip(known, here, strict=True)]
                parts = [each.of(kept) for each, kept in zip(files, here, strict=True)]
                yield batch["user_id"].to_numpy(), *_merged([base, *parts])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error
    if not all(each.all() for each in known):
        none = np.zeros(0, np.int64)
        nobody = Rated(Events(path, pa.array([], pa.string()), none, none, none), none)
        new = [each.of(~kept) for each, kept in zip(files, known, strict=True)]
        yield none, *_merged([nobody, *new])


def _of_batch(path: Path, batch: pa.RecordBatch) -> Rated:
    """Raises ValueError for what no good file has."""
    lists = [batch[name] for name in ("items", TIMES.name, RATINGS.name)]
    check_times(*lists[:2])
    lengths = lists[0].value_lengths()
    if not lists[2].value_lengths().equals(lengths):
        raise ValueError("not every item has a rating")
    items, times, ratings = (each.flatten().to_numpy().astype(np.int64) for each in lists)
    user = np.repeat(np.arange(len(batch)), lengths.to_numpy())
    return Rated(Events(path, batch["user"], user, items, times), ratings)


def _among(users: pa.Array, some: pa.Array) -> np.ndarray:
    found: np.ndarray = pc.is_in(users, some).to_numpy(zero_copy_only=False)
    return found


def _merged(parts: Sequence[Rated]) -> tuple[Merged, np.ndarray]:
    """See `merged`; and the ratings of what is kept."""
    of = merged([each.events for each in parts])
    return of, np.concatenate([each.ratings for each in parts])[of.order]


def _ratings(table: pa.Table, path: Path, levels: int) -> np.ndarray:
    """Of a table of events: int64[n]. Raises InputError."""
    given, ratings = column(table, path, RATING), ratings_in(table, path).astype(np.int64)
    odd = np.flatnonzero((ratings < 1) | (ratings > levels))
    if len(odd):
        row = int(odd[0])
        problem = f"{where(path, row)} is {given[row].as_py()!r}"
        raise InputError(f"{path}, column rating", problem, f"whole numbers, 1 to {levels}")
    return ratings
