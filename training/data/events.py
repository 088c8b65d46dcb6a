"""Events of a data set and of files that came since, merged into one history per user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.words import counted
from training.data.cutting import first_of_duplicates
from training.data.histories import BATCH_USERS, TIMES, check_times
from training.data.tables import ITEM, TIME, USER, name_of, read_rows, required, where
from training.data.times import seconds, unit_of, whole_seconds

COLUMNS = "user, item, timestamp"


class Events(NamedTuple):
    """Of a file `path`, in its order: `users` string[u], of every event which of them, its item id and its second:
    int64[n].
    """

    path: Path
    users: pa.Array
    user: np.ndarray
    item: np.ndarray
    time: np.ndarray


class Merged(NamedTuple):
    """Of several sources: `users` string[U], those of the first source first; their events one user after the other,
    oldest first, `offsets` int64[U + 1]. Of each, int64[n]: its item id, its second, its source, and its place in all
    sources one after the other (`order`).
    """

    users: pa.Array
    offsets: np.ndarray
    item: np.ndarray
    time: np.ndarray
    file: np.ndarray
    order: np.ndarray


class Came(NamedTuple):
    """Of the users of files, each counted once: how many the data set has and how many it has not, the first of those,
    and one that it has.
    """

    known: int = 0
    new: int = 0
    first_new: str = ""
    one_known: str = ""


def keys_of_items(artifact: Path) -> tuple[pa.Array, np.ndarray]:
    """Keys string[m] of the items of `items.parquet`, and their ids int64[m]. Raises ArtifactError."""
    path = artifact / "items.parquet"
    try:
        items = pq.read_table(check_regular(path), columns=["key", "item_id"])
        return items["key"].combine_chunks(), items["item_id"].to_numpy()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ArtifactError(path, f"not a readable items file: {error}") from error


def read_events(artifact: Path, paths: Sequence[Path]) -> list[Events]:
    """Of files: user, item, timestamp. Raises InputError, ArtifactError."""
    keys, ids = keys_of_items(artifact)
    return [events_of(read_rows(path, COLUMNS), path, keys, ids) for path in paths]


def who_came(artifact: Path, files: Sequence[Events]) -> Came:
    """Which users of `files` the data set of `artifact` has. Raises ArtifactError."""
    path = artifact / "histories.parquet"
    try:
        return came(pq.read_table(check_regular(path), columns=["user"])["user"].combine_chunks(), files)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error


def came(stored: pa.Array, files: Sequence[Events]) -> Came:
    """Which users of `files` are among `stored` string[u], u > 0."""
    users = pa.chunked_array([each.users for each in files]).unique()
    new = users.filter(pc.invert(pc.is_in(users, stored)))
    first = new[0].as_py() if len(new) else ""
    return Came(len(users) - len(new), len(new), first, stored[0].as_py())


def events_of(table: pa.Table, path: Path, keys: pa.Array, item_ids: np.ndarray) -> Events:
    """Of a file: user, item, timestamp. `keys` string[m] and `item_ids` int64[m] say which item is which.

    Raises InputError.
    """
    times = seconds(table, path)
    sizes = np.abs(times)

    def first(low: float, high: float) -> tuple[str, str, float] | None:
        rows = np.flatnonzero((low <= sizes) & (sizes <= high))
        field = f"{path}, column {name_of(table, TIME)}"
        return (field, where(path, int(rows[0])), float(times[rows[0]])) if len(rows) else None

    times = whole_seconds(times, unit_of(float(sizes.max()), first))
    spelled = required(table, path, ITEM)
    row = pc.index_in(spelled, keys)
    if row.null_count:
        first = row.is_null().index(True).as_py()
        problem = f"has {counted(row.null_count, 'event')} of unknown items: {where(path, first)} has"
        raise InputError(str(path), f"{problem} {spelled[first].as_py()!r}", "items of items.parquet")
    coded = required(table, path, USER).dictionary_encode()
    return Events(path, coded.dictionary, _numbers(coded.indices), item_ids[row.to_numpy()], times)


def stored_events(path: Path, users: pa.Array) -> Events:
    """Of `histories.parquet`, those of `users` string[u] alone. Where it has no times, they are from before all others.

    Raises ArtifactError.
    """
    try:
        with pq.ParquetFile(check_regular(path)) as file:
            times = TIMES.name in file.schema_arrow.names
            names = ["user", "items", *([TIMES.name] if times else [])]
            batches = file.iter_batches(BATCH_USERS, columns=names)
            table = pa.Table.from_batches(each.filter(pc.is_in(each["user"], users)) for each in batches)
        found = {name: table[name].combine_chunks() for name in names}
        if times:
            check_times(found["items"], found[TIMES.name])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error
    lengths, items = pc.list_value_length(found["items"]).to_numpy(), found["items"].flatten().to_numpy()
    before_all = np.iinfo(np.int64).min + np.arange(len(items))
    when = found[TIMES.name].flatten().to_numpy() if times else before_all
    return Events(path, found["user"], np.repeat(np.arange(len(lengths)), lengths), items, when)


def events_per_user(path: Path, parts: Sequence[Events]) -> tuple[pa.Array, np.ndarray]:
    """Users string[U] of `histories.parquet` and of `parts`, each once, and how many events each has: int64[U].

    Raises ArtifactError.
    """
    found = [
        (part.users, np.bincount(part.user, minlength=len(part.users)).astype(np.int64)) for part in parts
    ]
    try:
        with pq.ParquetFile(check_regular(path)) as file:
            for batch in file.iter_batches(BATCH_USERS, columns=["user", "items"]):
                found.append((batch["user"], _numbers(pc.list_value_length(batch["items"]))))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error
    users, counts = zip(*found, strict=True)
    coded = pa.chunked_array(users).combine_chunks().dictionary_encode()
    sums = np.bincount(_numbers(coded.indices), np.concatenate(counts), len(coded.dictionary))
    return coded.dictionary, sums.astype(np.int64)


def of_users(part: Events, users: pa.Array) -> Events:
    """The events of `users` string[u] alone."""
    kept = pc.is_in(part.users, users).to_numpy(zero_copy_only=False)[part.user]
    return part._replace(user=part.user[kept], item=part.item[kept], time=part.time[kept])


def merged(parts: Sequence[Events]) -> Merged:
    """Events of one second stay in the order of their sources; the same user, item and second count once, in the first
    source that has them.
    """
    who = pa.concat_arrays([part.users for part in parts]).dictionary_encode()
    number = np.split(_numbers(who.indices), np.cumsum([len(part.users) for part in parts])[:-1])
    user = np.concatenate([of[part.user] for of, part in zip(number, parts, strict=True)])
    item, time = (np.concatenate([getattr(part, name) for part in parts]) for name in ("item", "time"))
    order = np.lexsort((time, user))  # stable
    # What is in a later file again is not new: it would be asked for with itself in the history.
    order = order[first_of_duplicates(user[order], item[order], time[order])]
    counts = np.bincount(user[order], minlength=len(who.dictionary))
    file = np.repeat(np.arange(len(parts)), [len(part.user) for part in parts])
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return Merged(who.dictionary, offsets, item[order], time[order], file[order], order)


def _numbers(indices: pa.Array) -> np.ndarray:
    return indices.to_numpy().astype(np.int64)
