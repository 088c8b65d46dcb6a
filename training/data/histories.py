"""Histories as the trainers read them: ragged arrays of item ids, one user after the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular

SCHEMA = pa.schema([("user_id", pa.int64()), ("items", pa.list_(pa.int64())), ("user", pa.string())])
INT64 = pa.int64()
TIMES = pa.field("times", pa.list_(INT64))  # a further column, where the source had times
INT8 = pa.int8()
RATINGS = pa.field("ratings", pa.list_(INT8))  # a further one, where every row of the source had a rating
BATCH_USERS = 1 << 14
GROUP_USERS = 1 << 12  # of a row group: a server that is asked for one user reads a group
BLOCK_ITEMS = 1 << 22
IN_MEMORY = 1 << 25  # items
MIN_HISTORY = 3  # one item to learn from, one to validate, one to test


@dataclass(frozen=True, eq=False)
class Histories:
    """U users, ragged: `user_ids` int64[U], `items` int64[total] oldest first, `offsets` int64[U + 1].

    `times` int64[total] are seconds, where they were asked for and are known. The items of many are mapped from a file.
    """

    user_ids: np.ndarray
    items: np.ndarray
    offsets: np.ndarray
    times: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.user_ids)

    @property
    def lengths(self) -> np.ndarray:
        """int64[U]."""
        return np.diff(self.offsets)

    def cut(self, last: int) -> Histories:
        """Histories without their `last` newest items: 2 is the training part, 1 what the test is given."""
        items = self._without(last, self.items)
        times = None if self.times is None else self._without(last, self.times)
        return Histories(self.user_ids, items, self.offsets - last * np.arange(len(self) + 1), times)

    def _without(self, last: int, values: np.ndarray) -> np.ndarray:
        """`values` int64[total] without those of every user's `last` newest items."""
        kept = room_for(len(values) - last * len(self))
        at = 0
        for start in range(0, len(values), BLOCK_ITEMS):
            block = values[start : start + BLOCK_ITEMS]
            keep = np.ones(len(block), bool)
            for n in range(1, last + 1):
                newest = self.offsets[1:] - n
                low, high = np.searchsorted(newest, (start, start + len(block)))
                keep[newest[low:high] - start] = False
            stop = at + int(keep.sum())
            kept[at:stop], at = block[keep], stop
        return kept

    def newest(self, most: int) -> Histories:
        """Histories of at most their `most` newest items."""
        first = np.maximum(self.offsets[:-1], self.offsets[1:] - most)
        if (first == self.offsets[:-1]).all():
            return self
        keep = np.arange(len(self.items)) >= np.repeat(first, self.lengths)
        offsets = np.concatenate(([0], np.cumsum(self.offsets[1:] - first)))
        times = None if self.times is None else self.times[keep]
        return Histories(self.user_ids, self.items[keep], offsets, times)

    def nth_last(self, n: int) -> np.ndarray:
        """The n-th newest item of every user (1 = the test item): int64[U]."""
        return self.items[self.offsets[1:] - n]

    def sample(self, users: int, seed: int) -> Histories:
        """At most `users` of the users, drawn once per seed, shortest history first. Raises InputError."""
        if users < 1:
            raise InputError("users", f"is {users}", f"1 or more; there are {len(self)}")
        chosen = np.random.default_rng(seed).permutation(len(self))[:users]
        return self.of(chosen[np.argsort(self.lengths[chosen], kind="stable")])

    def of(self, chosen: np.ndarray) -> Histories:
        """Those of the users number `chosen` int64[n]."""

        def of_them(values: np.ndarray) -> np.ndarray:
            parts = [values[self.offsets[u] : self.offsets[u + 1]] for u in chosen]
            return np.concatenate([values[:0], *parts])

        offsets = np.concatenate(([0], np.cumsum(self.lengths[chosen])))
        times = None if self.times is None else of_them(self.times)
        return Histories(self.user_ids[chosen], of_them(self.items), offsets, times)

    def rows(self) -> list[np.ndarray]:
        """One view per user."""
        return np.split(self.items, self.offsets[1:-1])

    def save(self, path: Path, user_keys: list[str]) -> None:
        """Write `histories.parquet`; column `user` keeps the source's own spelling."""
        keys = pa.array(user_keys)
        table = history_table(self.user_ids, self.items, self.lengths, keys, self.times)
        pq.write_table(table, path, row_group_size=GROUP_USERS)

    @classmethod
    def load(cls, path: Path, times: bool = False) -> Histories:
        """Read `histories.parquet`, a row group at a time; with `times` those too. Raises ArtifactError."""
        try:
            with pq.ParquetFile(check_regular(path)) as file:
                times = times and TIMES.name in file.schema_arrow.names
                names = ["items", TIMES.name] if times else ["items"]
                kept, at = [room_for(stored_items(file.metadata)) for _ in names], 0
                users, lengths = [], []
                for batch in file.iter_batches(BATCH_USERS, columns=["user_id", *names]):
                    if times:
                        check_times(batch["items"], batch[TIMES.name])
                    for values, name in zip(kept, names, strict=True):
                        block = batch[name].flatten().to_numpy()
                        values[at : at + len(block)] = block
                    at += len(block)
                    users.append(batch["user_id"].to_numpy())
                    lengths.append(pc.list_value_length(batch["items"]).to_numpy(zero_copy_only=False))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise ArtifactError(path, f"not a readable histories file: {error}") from error
        # So that it holds of no list too, whose length is NaN
        if not lengths or not all((each >= MIN_HISTORY).all() for each in lengths):
            raise ArtifactError(path, f"every history needs {MIN_HISTORY} items or more")
        offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths), dtype=np.int64)))
        items, *found = (values[:at] for values in kept)
        return cls(np.concatenate(users), items, offsets, *found)


def room_for(count: int) -> np.ndarray:
    """int64[count]; beyond IN_MEMORY in a temporary file, mapped, that the system may take out of memory.

    Raises InputError where the disk has no room for it.
    """
    if count <= IN_MEMORY:
        return np.empty(count, np.int64)
    with TemporaryFile() as file:  # it goes with the map
        try:
            # Else a full disk shows at the first write to the map, which ends the process by SIGBUS.
            os.posix_fallocate(file.fileno(), 0, 8 * count)
        except OSError as error:
            problem = (
                f"{gettempdir()} has no room for {8 * count / 1e6:.0f} MB of histories: {error.strerror}"
            )
            raise InputError("TMPDIR", problem, "a folder on a disk with more room") from error
        return np.memmap(file, np.int64, "w+", shape=(count,))


def check_times(items: pa.ListArray, times: pa.ListArray) -> None:
    """Raises ValueError unless every item of the lists has a time, none of them before the one of the item before."""
    lengths = pc.list_value_length(items)
    if not pc.list_value_length(times).equals(lengths):
        raise ValueError("not every item has a time")
    user = np.repeat(np.arange(len(lengths)), lengths.to_numpy())
    if ((np.diff(times.flatten().to_numpy()) < 0) & (user[1:] == user[:-1])).any():
        raise ValueError("times are not oldest first")


def history_table(
    user_ids: np.ndarray,
    items: np.ndarray,
    lengths: np.ndarray,
    keys: pa.Array,
    times: np.ndarray | None = None,
    ratings: np.ndarray | None = None,
) -> pa.Table:
    """Rows of `histories.parquet`: int64[U], int64[total], int64[U], string[U] and, where there are any, times
    int64[total] and ratings int8[total]; total below 2**31.
    """
    table = pa.table([pa.array(user_ids, pa.int64()), lists(items, lengths), keys], schema=SCHEMA)
    for column, values, kind in ((TIMES, times, INT64), (RATINGS, ratings, INT8)):
        if values is not None:
            table = table.append_column(column, lists(values, lengths, kind))
    return table


def lists(values: np.ndarray, lengths: np.ndarray, of: pa.DataType = INT64) -> pa.ListArray:
    """`values` [total], int64 if nothing is said, in lists of int64[U] `lengths`; total below 2**31."""
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, of))


def stored_items(metadata: pq.FileMetaData) -> int:
    """Interactions of a `histories.parquet`, at most: an empty list, which no good file has, counts as one."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(column.num_values for column in columns if column.path_in_schema.startswith("items."))
