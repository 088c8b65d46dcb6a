"""Sorted interactions to histories, in blocks: cut where users end, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from genrec.errors import ArtifactError

# users, items int64[n], times float64[n], ratings int8[n]
Block = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
# users int64[U], items int64[total], their times float64[total] and ratings int8[total], lengths int64[U]
Ragged = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Arranger(Protocol):
    """What has the interactions and sorts them: `count` rows of `user`, `item` (keys as spelled), `time`, `rating`."""

    count: int

    def __enter__(self) -> Arranger: ...

    def __exit__(self, *_: object) -> None: ...

    def keys(self, column: str) -> pa.Array:
        """Distinct keys of `column` (user, item) in the order of their first rows: string[distinct]."""

    def place_of(self, column: str, key: str) -> tuple[str, str]:
        """Where a `key` of `column` first stands, for errors: file and line."""

    def name(self, column: str, keys: pa.Array, ids: pa.Array) -> None:
        """From now on the ids of `column` are these, int64[n] of keys string[n], and not its keys as numbers."""

    def farthest(self) -> float:
        """The size of the time that is farthest from 0."""

    def first_time(self, low: float, high: float) -> tuple[str, str, float] | None:
        """Where the first time lies whose size is from `low` to `high`: file and column, line, and the time."""

    def unrated(self) -> tuple[str, str] | None:
        """Where the first row without a rating stands: file and line."""

    def histories(self) -> Iterator[Ragged]:
        """Blocks of histories of ids, by ascending user, each by time and then by row."""


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
    users, items, times, ratings = (column.to_numpy() for column in pa.Table.from_batches(batches).columns)
    return users, items, times, ratings


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
    users, _, times, _ = block
    back = (users[1:] < users[:-1]) | ((users[1:] == users[:-1]) & (times[1:] < times[:-1]))
    if back.any() or (before is not block and (users[0], times[0]) < (before[0][-1], before[2][-1])):
        raise ArtifactError(
            "histories.parquet", "cannot be made: the interactions did not come sorted from DuckDB"
        )


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


def histories_of(users: np.ndarray, items: np.ndarray, times: np.ndarray, ratings: np.ndarray) -> Ragged:
    """Histories of a block of whole users, sorted by user and time: each user, item and time once."""
    keep = first_of_duplicates(users, items, times)
    users, items, times, ratings = users[keep], items[keep], times[keep], ratings[keep]
    starts = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
    return users[starts], items, times, ratings, np.diff(np.append(starts, len(users)))
