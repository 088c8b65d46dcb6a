"""Ratings of a named data set, which its histories do not have, and what is known of its users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.files import check_regular, read_json
from genrec.nn.hstu import RATINGS
from training.cutting import first_of_duplicates
from training.sources import WHEELS, unpack
from training.tables import ITEM, USER, column, read_table, required
from training.times import seconds, unit_of, whole_seconds

RATING = ("rating",)
FEATURES = ("gender", "age", "occupation")
HELD_OUT = 10  # of every user, the newest


@dataclass(frozen=True, eq=False)
class Ratings:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `items` int64 (catalogue row),
    `ratings` int64 (1 to 5) and `times` int64 (seconds). Of users `features` int64[U, F], numbered from 1 on, `sizes`
    how many there are; `numbers` says which value of which feature has which number. A user of unknown features has
    zeros. `file` int64 says of every event where it was read: 0 is the data set, 1 the first file after it.
    """

    offsets: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray
    features: np.ndarray
    sizes: int
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    file: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def users(self) -> np.ndarray:
        """Of every event its user: int64."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def held_out(self) -> np.ndarray:
        """Which events are a user's HELD_OUT newest: bool."""
        return np.arange(len(self.items)) >= self.offsets[1:][self.users] - HELD_OUT


def load_ratings(artifact: Path, catalogue: Catalogue, more: Sequence[Path] = ()) -> Ratings:
    """Of the data set that `genrec data` made `artifact` of, and of `more` files: user, item, rating, timestamp.

    Events of one second stay in file order; the same user, item and second count once. Raises InputError.
    """
    source = artifact / "source.json"
    said = read_json(source) if source.is_file() else {"name": ""}
    name = said["name"]
    if name not in WHEELS or said.get("folder"):
        of = "a folder named " if said.get("folder") else ""
        raise InputError(
            "source", f"is {of}{name or 'unknown'!r}, whose ratings are not at hand", ", ".join(WHEELS)
        )
    items = pq.read_table(check_regular(artifact / "items.parquet"))
    with TemporaryDirectory() as folder:
        events, users = unpack(name, artifact.parent / ".downloads", Path(folder), (".inter", ".user"))
        return read_ratings(
            events, users, items["key"].combine_chunks(), items["item_id"].to_numpy(), catalogue, more
        )


class _Events(NamedTuple):
    """Of a file, in its order: `user` string[n], row of the items' keys, rating and second, int64[n]."""

    user: pa.Array
    row: np.ndarray
    rating: np.ndarray
    time: np.ndarray


def read_ratings(
    events: Path, users: Path, keys: pa.Array, item_ids: np.ndarray, catalogue: Catalogue,
    more: Sequence[Path] = (),
) -> Ratings:  # fmt: skip
    """Of two tables, and of `more` tables of events, whose users may be others; `keys` string[m] and `item_ids`
    int64[m] say which item is which. Raises InputError.
    """
    parts = [_read_events(path, keys) for path in (events, *more)]
    who = pa.concat_arrays([part.user for part in parts]).dictionary_encode()
    row, rating, time = (np.concatenate(values) for values in list(zip(*parts, strict=True))[1:])
    user = who.indices.to_numpy()
    order = np.lexsort((time, user))  # stable
    # What is in a later file again is not new: it would be asked for with its own rating in the history.
    order = order[first_of_duplicates(user[order], row[order], time[order])]
    of_set = int(user[: len(parts[0].row)].max()) + 1  # users, who come first
    features, numbers = read_features(users, who.dictionary[:of_set])
    new = np.zeros((len(who.dictionary) - of_set, features.shape[1]), np.int64)
    return Ratings(
        np.concatenate(([0], np.cumsum(np.bincount(user[order])))),
        catalogue.rows_of(item_ids[row])[order],
        rating[order],
        time[order],
        np.concatenate((features, new)),
        sum(map(len, numbers.values())),
        numbers,
        np.repeat(np.arange(len(parts)), [len(part.row) for part in parts])[order],
    )


def _read_events(path: Path, keys: pa.Array) -> _Events:
    table = read_table(path)
    times = seconds(table, path)
    times = whole_seconds(times, unit_of(float(np.abs(times).max())))
    row = pc.index_in(required(table, path, ITEM), keys)
    if row.null_count:
        problem = f"has {row.null_count} events of unknown items"
        raise InputError(str(path), problem, "items of items.parquet")
    return _Events(required(table, path, USER), row.to_numpy(), _ratings(table, path), times)


def _ratings(table: pa.Table, path: Path) -> np.ndarray:
    field, limit = f"{path}, column rating", f"whole numbers, 1 to {RATINGS}"
    given = column(table, path, RATING).combine_chunks()
    try:
        ratings = given.cast(pa.float64()).to_numpy(zero_copy_only=False)  # null is NaN
    except pa.ArrowException as error:
        raise InputError(field, f"cannot be read: {error}", limit) from error
    odd = ratings[~np.isin(ratings, np.arange(1, RATINGS + 1))]
    if len(odd):
        raise InputError(field, f"has {odd[0]}", limit)
    return ratings.astype(np.int64)


def read_features(users: Path, keys: pa.Array) -> tuple[np.ndarray, dict[str, dict[str, int]]]:
    """FEATURES of users `keys` string[U]: int64[U, F], every value of every feature a number from 1 on; which."""
    table = read_table(users)
    row = pc.index_in(keys, required(table, users, USER))
    if row.null_count:
        raise InputError(str(users), f"lacks {row.null_count} users", "every user of the events")
    found, numbers, first = [], {}, 1
    for name in FEATURES:
        coded = required(table, users, (name,)).take(row).dictionary_encode()
        found.append(first + coded.indices.to_numpy().astype(np.int64))
        numbers[name] = {
            str(value): number for number, value in enumerate(coded.dictionary.to_pylist(), first)
        }
        first += len(coded.dictionary)
    return np.stack(found, 1), numbers
