"""Interactions -> `histories.parquet` and `items.parquet`: integer ids, time order, duplicates dropped.

In blocks of interactions: what is in memory at once are the items, the users' keys and what DuckDB may take.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.manifest import stage_key
from genrec.progress import ticking
from training.data import MIN_HISTORY, SCHEMA, history_table
from training.interactions import place_of, write_interactions
from training.keys import number_keys
from training.ordering import Engine
from training.sources import Source
from training.steps import Steps
from training.tables import BLOCK_ROWS, where

ROWS, HISTORIES, ITEMS, NOTES = "interactions.parquet", "histories.parquet", "items.parquet", "notes.txt"


def write_data(source: Source, out: Path) -> list[str]:
    """Source -> `out`/histories.parquet and `out`/items.parquet; returns the report, one line per finding.

    Ended in the middle, it goes on after the last whole step of `out`/.data. Raises InputError.
    """
    key = stage_key({"stage": "data"}, [source.interactions, source.described])
    with Steps(out / ".data", key) as steps:
        steps.make(ROWS, lambda path: write_interactions(source.interactions, path))
        notes = steps.make(NOTES, lambda path: path.write_text("\n".join(write_ids(source, steps))))
        found = notes.read_text().splitlines()
        for name in (ITEMS, HISTORIES):
            if (
                steps.folder / name
            ).exists():  # else it was moved by a process that was ended before the next
                os.replace(steps.folder / name, out / name)
    return found


def write_ids(source: Source, steps: Steps) -> list[str]:
    """Both files of ids, of the interactions that are there as Parquet. Returns the report. Raises InputError."""
    rows = steps.folder / ROWS
    with Engine(rows, steps.scratch) as engine:
        seen, user_keys = engine.keys("item"), engine.keys("user")
    unknown = seen.filter(pc.invert(pc.is_in(seen, source.keys)))
    unknown = unknown.take(pc.sort_indices(unknown))
    notes = list(source.notes)
    if len(unknown):
        notes.append(f"{len(unknown)} items have no row in the items file; their key serves as the title")
    keys = pa.concat_arrays([source.keys, unknown])

    def place_of_item(key: str) -> tuple[str, str]:
        row = source.keys.index(key).as_py()
        if row < 0:
            return place_of(source.interactions, rows, "item", key)
        return str(source.described), where(source.described, source.rows[row])

    item_ids, named_items = number_keys(keys, "item", ITEMS, place_of_item)
    user_ids, named_users = number_keys(
        user_keys, "user", HISTORIES, lambda key: place_of(source.interactions, rows, "user", key)
    )
    counts = Counts()
    with Engine(rows, steps.scratch) as engine:
        if named_items:
            engine.name("item", keys, pa.array(item_ids))
        if named_users:
            engine.name("user", user_keys, pa.array(user_ids))
        total, batches = pq.read_metadata(rows).num_rows, engine.ordered()
        with ticking("histories", total, "row") as bar:
            blocks = whole_users(even_blocks(batches, BLOCK_ROWS, bar))
            write_histories(blocks, user_keys if named_users else None, counts, steps.scratch / HISTORIES)
    if not counts.lengths:
        raise InputError("interactions", f"no user has {MIN_HISTORY}", f"users with {MIN_HISTORY} or more")
    write_items(source, unknown, keys, item_ids, steps.scratch / ITEMS)
    for name in (ITEMS, HISTORIES):
        os.replace(steps.scratch / name, steps.folder / name)
    return [*notes, *named_items, *named_users, *counts.report(len(user_keys), len(keys))]


@dataclass
class Counts:
    """What became of the interactions: rows dropped, and int64[users] lengths of histories per block."""

    duplicated: int = 0
    lengths: list[np.ndarray] = field(default_factory=list)

    def report(self, users: int, items: int) -> list[str]:
        """For people: of `users` that were there and all `items`."""
        lengths = np.concatenate(self.lengths)
        notes = []
        if self.duplicated:
            notes.append(f"{self.duplicated} duplicated rows (same user, item and timestamp) dropped")
        if len(lengths) < users:
            notes.append(
                f"{users - len(lengths)} of {users} users with fewer than {MIN_HISTORY} interactions dropped"
            )
        return [
            *notes,
            f"{len(lengths)} users, {items} items, {lengths.sum()} interactions,"
            f" histories of {lengths.min()} to {lengths.max()} items (median {int(np.median(lengths))})",
        ]


Block = tuple[np.ndarray, np.ndarray, np.ndarray]  # users, items int64[n] and times float64[n]


def even_blocks(batches: Iterable[pa.RecordBatch], rows: int, bar: Any) -> Iterator[Block]:
    """The columns in blocks of `rows`, the last of less: batches end anywhere, and files must not differ by that."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        bar.update(len(batch))
        held.append(batch)
        while (have := sum(map(len, held))) >= rows:
            *before, last = held
            over = have - rows
            yield _arrays([*before, last.slice(0, len(last) - over)])
            held = [last.slice(len(last) - over)]
    if any(map(len, held)):
        yield _arrays(held)


def _arrays(batches: list[pa.RecordBatch]) -> Block:
    users, items, times = (column.to_numpy() for column in pa.Table.from_batches(batches).columns)
    return users, items, times


def whole_users(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows, cut only where a user ends. Raises ArtifactError for rows that are not sorted by user and time."""
    left: list[Block] = []
    for block in blocks:
        users = block[0]
        check_sorted(block, left[-1] if left else block)
        start = int(np.searchsorted(users, users[-1]))  # of the last user, who may go on
        if start or (left and left[0][0][0] != users[0]):
            yield tuple(
                np.concatenate(parts) for parts in zip(*left, (c[:start] for c in block), strict=True)
            )
            left = []
        left.append(tuple(column[start:] for column in block))
    if left:
        yield tuple(np.concatenate(parts) for parts in zip(*left, strict=True))


def check_sorted(block: Block, before: Block) -> None:
    """Raises ArtifactError unless rows go on from those before. An engine that runs in parallel might mix them up."""
    users, _, times = block
    back = (users[1:] < users[:-1]) | ((users[1:] == users[:-1]) & (times[1:] < times[:-1]))
    if back.any() or (before is not block and (users[0], times[0]) < (before[0][-1], before[2][-1])):
        raise ArtifactError(HISTORIES, "cannot be made: the interactions did not come sorted from DuckDB")


def first_of_duplicates(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Of rows sorted by user and time, the first of every user, item and time: bool[n]."""
    keep = np.ones(len(users), bool)
    same = (users[1:] == users[:-1]) & (times[1:] == times[:-1])
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    tied = tied[np.lexsort((items[tied], times[tied], users[tied]))]  # stable: equal rows stay in order
    before, after = tied[:-1], tied[1:]
    again = (
        (users[after] == users[before]) & (times[after] == times[before]) & (items[after] == items[before])
    )
    keep[after[again]] = False
    return keep


def write_histories(blocks: Iterator[Block], names: pa.Array | None, counts: Counts, path: Path) -> None:
    """`histories.parquet` of blocks of whole users, those with MIN_HISTORY items or more.

    `names` string[users] are the keys of the ids 1, 2, ...; None where ids are the keys.
    """
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for users, items, times in blocks:
            keep = first_of_duplicates(users, items, times)
            counts.duplicated += len(keep) - int(keep.sum())
            users, items = users[keep], items[keep]
            starts = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
            lengths = np.diff(np.append(starts, len(users)))
            enough = lengths >= MIN_HISTORY
            if not enough.any():
                continue
            ids, items = users[starts[enough]], items[np.repeat(enough, lengths)]
            keys = pa.array(ids).cast(pa.string()) if names is None else names.take(pa.array(ids - 1))
            writer.write_table(history_table(ids, items, lengths[enough], keys))
            counts.lengths.append(lengths[enough])


def write_items(source: Source, unknown: pa.Array, keys: pa.Array, ids: np.ndarray, path: Path) -> None:
    """`items.parquet`: the described items and those that have no row, sorted by id."""
    columns = {
        "item_id": ids,
        "key": keys,
        "title": pa.concat_arrays([source.titles, unknown]),
        "genre": pa.concat_arrays([source.genres, pa.repeat("", len(unknown))]),
    }
    pq.write_table(pa.table(columns).sort_by("item_id"), path)
