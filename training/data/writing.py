"""Interactions -> `histories.parquet` and `items.parquet`: integer ids, time order, duplicates dropped.

What is in memory at once are the items, the users' keys, and blocks of what an `Arranger` sorts: DuckDB, or Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import InputError
from genrec.manifest import stage_key
from genrec.rank.user_features import USERS
from genrec.words import counted
from training.data.cutting import Arranger, Ragged
from training.data.histories import GROUP_USERS, MIN_HISTORY, RATINGS, SCHEMA, TIMES, history_table
from training.data.interactions import MOST_RATING, files_of, has_ratings, has_times, write_interactions
from training.data.keys import number_keys
from training.data.ordering import Engine
from training.data.sources import Source
from training.data.steps import Steps
from training.data.tables import TABLE, where
from training.data.times import UNITS, unit_of, whole_seconds
from training.data.users import read_features, write_users

ROWS, HISTORIES, ITEMS, NOTES = "interactions.parquet", "histories.parquet", "items.parquet", "notes.txt"
FORM = "ratings"  # of the files, in keys: what was made in another form is made again


def write_data(source: Source, out: Path, cluster: str | None = None, key: str = "") -> list[str]:
    """Source -> `out`/histories.parquet, items.parquet and, of users, users.parquet; returns the report, in lines.

    `cluster` is the address of Ray, whose nodes read and sort; without one DuckDB does here. Ended in the middle, it
    goes on after the last whole step of `out`/.data; `key` stands for the files, or a hash of them. Raises InputError.
    """
    of_users = [source.users] if source.users else []
    if cluster is None and source.interactions.is_dir():
        raise InputError(
            str(source.interactions), "is a folder", f"{TABLE}, or sequences; a folder of them with --ray"
        )
    for path in of_users:  # before the rest, which takes long, is read
        read_features(path, source.features)
    if not key:
        given = [*files_of(source.interactions), source.described, *of_users]
        key = stage_key({"stage": "data", "form": FORM}, given)
    with Steps(out / ".data", key) as steps:
        if cluster is None:
            rows = steps.make(ROWS, lambda path: write_interactions(source.interactions, path))
            engine: Callable[[], Arranger] = partial(Engine, source.interactions, rows, steps.scratch)
        else:
            from training.data.cluster import Cluster  # Ray is an extra of its own

            engine = partial(Cluster, source.interactions, cluster)

        def work(path: Path) -> None:
            with engine() as opened:
                path.write_text("\n".join(write_ids(source, opened, steps)))

        found = steps.make(NOTES, work).read_text().splitlines()
        if not of_users:
            (out / USERS).unlink(missing_ok=True)  # of former data
        for name in (ITEMS, USERS, HISTORIES):
            # Else it was moved by a process that was ended before the next
            if (steps.folder / name).exists():
                os.replace(steps.folder / name, out / name)
    return found


def write_ids(source: Source, engine: Arranger, steps: Steps) -> list[str]:
    """The files of ids, of the interactions that `engine` has. Returns the report. Raises InputError."""
    seen, user_keys = engine.keys("item"), engine.keys("user")
    unknown = seen.filter(pc.invert(pc.is_in(seen, source.keys)))
    if len(unknown) == len(seen):
        one, other = source.keys[0].as_py(), seen[0].as_py()
        problem = f"names no item of the interactions: its first is {one!r}, theirs {other!r}"
        raise InputError(str(source.described), problem, "items as the interactions spell them")
    unknown = unknown.take(pc.sort_indices(unknown))
    notes = list(source.notes)
    if len(unknown):
        rows = counted(len(unknown), "item has", "items have")
        notes.append(f"{rows} no row in the items file; the key serves as the title")
    keys = pa.concat_arrays([source.keys, unknown])
    item_ids, named_items = number_keys(keys, "item", ITEMS, partial(_place_of_item, source, engine))
    user_ids, named_users = number_keys(user_keys, "user", HISTORIES, partial(engine.place_of, "user"))
    if named_items:
        engine.name("item", keys, pa.array(item_ids))
    if named_users:
        engine.name("user", user_keys, pa.array(user_ids))
    unit, rated, said = _times_and_ratings(source, engine)
    notes += said
    counts, names = Counts(), user_keys if named_users else None
    write_histories(engine.histories(), names, unit, rated, counts, steps.scratch / HISTORIES)
    if not counts.lengths:
        raise InputError(
            "interactions", f"no user has {MIN_HISTORY} rows", f"users with {MIN_HISTORY} or more"
        )
    write_items(source, unknown, keys, item_ids, steps.scratch / ITEMS)
    if source.users:
        notes += write_users(source.users, source.features, user_keys, user_ids, steps.scratch / USERS)
    for name in (ITEMS, *([USERS] if source.users else []), HISTORIES):
        os.replace(steps.scratch / name, steps.folder / name)
    return [*notes, *named_items, *named_users, *counts.report(engine.count, len(user_keys), len(keys))]


def _place_of_item(source: Source, engine: Arranger, key: str) -> tuple[str, str]:
    """The file and the place in it where an item is described, or where it is met first."""
    row = source.keys.index(key).as_py()
    if row < 0:
        return engine.place_of("item", key)
    return str(source.described), where(source.described, source.rows[row])


def _times_and_ratings(source: Source, engine: Arranger) -> tuple[int | None, bool, list[str]]:
    """The unit of times, None where there are none; whether ratings are kept; and notes of both. Raises InputError."""
    notes = []
    unit = unit_of(engine.farthest(), engine.first_time) if has_times(source.interactions) else None
    if unit and unit > 1:
        notes.append(f"timestamps are taken for {UNITS[unit]}: as seconds they would be after the year 9999")
    rated = has_ratings(source.interactions)
    place = engine.unrated() if rated else None
    if place:
        notes.append(
            f"ratings are not kept: {' '.join(place)} has none that is a whole number, 1 to {MOST_RATING}"
        )
    return unit, rated and not place, notes


@dataclass
class Counts:
    """What became of the interactions: distinct ones, and int64[users] lengths of histories per block."""

    distinct: int = 0
    lengths: list[np.ndarray] = field(default_factory=list)

    def report(self, rows: int, users: int, items: int) -> list[str]:
        """For people: of `rows` and `users` that were there, and all `items`."""
        lengths = np.concatenate(self.lengths)
        notes = []
        if rows > self.distinct:
            notes.append(
                f"{counted(rows - self.distinct, 'duplicated row')} (same user, item and timestamp) dropped"
            )
        if len(lengths) < users:
            notes.append(
                f"{users - len(lengths)} of {counted(users, 'user')} with fewer than {MIN_HISTORY} interactions dropped"
            )
        return [
            *notes,
            f"{counted(len(lengths), 'user')}, {counted(items, 'item')}, {lengths.sum()} interactions,"
            f" histories of {lengths.min()} to {lengths.max()} items (median {int(np.median(lengths))})",
        ]


def write_histories(
    histories: Iterable[Ragged],
    names: pa.Array | None,
    unit: int | None,
    rated: bool,
    counts: Counts,
    path: Path,
) -> None:
    """`histories.parquet` of histories by ascending user, those with MIN_HISTORY items or more.

    `names` string[users] are the keys of the ids 1, 2, ...; None where ids are the keys. `unit` of their times are a
    second; None where there are no times. Ratings are kept where all are `rated`.
    """
    schema = pa.schema([*SCHEMA, *([TIMES] if unit else []), *([RATINGS] if rated else [])])
    with pq.ParquetWriter(path, schema) as writer:
        for ids, items, times, ratings, lengths in histories:
            counts.distinct += len(items)
            enough = lengths >= MIN_HISTORY
            if not enough.any():
                continue
            kept = np.repeat(enough, lengths)
            ids, items, lengths = ids[enough], items[kept], lengths[enough]
            seconds = whole_seconds(times[kept], unit) if unit else None
            keys = pa.array(ids).cast(pa.string()) if names is None else names.take(pa.array(ids - 1))
            liked = ratings[kept] if rated else None
            writer.write_table(history_table(ids, items, lengths, keys, seconds, liked), GROUP_USERS)
            counts.lengths.append(lengths)


def write_items(source: Source, unknown: pa.Array, keys: pa.Array, ids: np.ndarray, path: Path) -> None:
    """`items.parquet`: the described items and those that have no row, sorted by id."""
    columns = {
        "item_id": ids,
        "key": keys,
        "title": pa.concat_arrays([source.titles, unknown]),
        "genre": pa.concat_arrays([source.genres, pa.repeat("", len(unknown))]),
    }
    pq.write_table(pa.table(columns).sort_by("item_id"), path)
