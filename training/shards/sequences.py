"""Sequences from shards of Parquet, read as they are needed; each rank has its own shards (MTGRBoost, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from training.embedding.arrays import Int64

CHUNK_ROWS = 1024


class Ragged(NamedTuple):
    """Ids of n sequences: `values` int64[total], sequence i is values[offsets[i] : offsets[i + 1]]."""

    values: Int64
    offsets: Int64


class Sequences(NamedTuple):
    """n sequences, each with a list of int64 per column; a column with one value per sequence is a list of one."""

    columns: dict[str, Ragged]

    @property
    def count(self) -> int:
        """n."""
        return len(next(iter(self.columns.values())).offsets) - 1

    def lengths(self, column: str) -> Int64:
        """int64[n]."""
        return np.diff(self.columns[column].offsets)

    def take(self, order: Int64) -> Sequences:
        """Those at `order`."""
        return Sequences({name: _take(each, order) for name, each in self.columns.items()})

    @classmethod
    def join(cls, parts: Sequence[Sequences]) -> Sequences:
        """One after the other; at least one part."""
        return cls({name: _join([part.columns[name] for part in parts]) for name in parts[0].columns})

    @classmethod
    def none(cls, columns: Sequence[str]) -> Sequences:
        """No sequence of these columns."""
        return cls({name: Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)) for name in columns})


class Chunk(NamedTuple):
    """Sequences that stand together in a shard, from row `first`."""

    shard: str
    first: int
    sequences: Sequences


def read_shards(
    paths: Sequence[Path],
    columns: Sequence[str],
    rank: int = 0,
    ranks: int = 1,
    position: Mapping[str, int] | None = None,
) -> Iterator[Chunk]:
    """Chunks of the shards of this rank, every `ranks`-th path; `position` has the rows per shard that are done.

    A position may be of another number of ranks. Raises InputError and ArtifactError.
    """  # fmt: skip
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            "shards", f"has {twice} twice", "files of distinct names, as positions are kept by name"
        )
    for path in paths[rank::ranks]:
        yield from _read_shard(path, columns, (position or {}).get(path.name, 0))


def _read_shard(path: Path, columns: Sequence[str], done: int) -> Iterator[Chunk]:
    try:
        file = pq.ParquetFile(check_regular(path))
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise ArtifactError(
                path, f"has no column {missing[0]!r}, only {', '.join(file.schema_arrow.names)}"
            )
        first = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if first + rows > done:  # groups that are done are not read
                at = first
                for batch in file.iter_batches(CHUNK_ROWS, row_groups=[group], columns=list(columns)):
                    skip = min(max(done - at, 0), len(batch))
                    if skip < len(batch):
                        yield Chunk(path.name, at + skip, _sequences(path, batch.slice(skip), columns))
                    at += len(batch)
            first += rows
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(path, f"is no whole Parquet file: {error}") from error


def _sequences(path: Path, batch: pa.RecordBatch, columns: Sequence[str]) -> Sequences:
    return Sequences({name: _ragged(path, name, batch.column(name)) for name in columns})


def _ragged(path: Path, name: str, column: pa.Array) -> Ragged:
    kind = column.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    values = column.flatten() if listed else column
    if column.null_count or values.null_count or not pa.types.is_integer(values.type):
        problem = "has nulls" if pa.types.is_integer(values.type) else f"is of type {kind}"
        raise ArtifactError(path, f"column {name!r} {problem}; accepted: integers or lists of integers")
    lengths = column.value_lengths().to_numpy() if listed else np.ones(len(column), np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    try:
        return Ragged(values.cast(pa.int64()).to_numpy(), offsets)
    except pa.ArrowInvalid as error:  # unsigned ones, which the file has whole
        raise ArtifactError(path, f"column {name!r}: {error}") from error


def _take(ragged: Ragged, order: Int64) -> Ragged:
    lengths = np.diff(ragged.offsets)[order]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = np.arange(offsets[-1]) + np.repeat(ragged.offsets[order] - offsets[:-1], lengths)
    return Ragged(ragged.values[place], offsets)


def _join(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Ragged(np.concatenate([part.values for part in parts]), np.concatenate(([0], np.cumsum(lengths))))
