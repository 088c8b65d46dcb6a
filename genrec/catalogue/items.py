"""The catalogue: items, their semantic IDs, titles and popularity, as `catalogue.parquet` holds them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.errors import ArtifactError
from genrec.files import check_regular

MEANING = "learnt_semantic_ids"  # among the facts of a training: `Catalogue.meaning` of what it has learnt
_SIZES_KEY = b"genrec.codebook_sizes"
_IDS_AN_ITEM = 4  # the table of rows by id has as many entries an item, at most: 16 bytes,
_IDS_ANYWAY = 2**20  # or this many in all: 4 MiB


def log_shares(popularity: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Of counts int64[n], the log of each one's share of all. What was never counted is half a count: finite, and
    below all others.
    """
    share = np.maximum(popularity.astype(np.float64), 0.5)  # int64 counts may overflow their sum
    found: npt.NDArray[np.float32] = np.log(share / share.sum()).astype(np.float32)
    return found


@dataclass(frozen=True, eq=False)
class Catalogue:
    """n items. `item_ids` int64[n] distinct, `codes` int32[n, L], `titles` n strings, `popularity` int64[n].

    `codebook_sizes` is (T_1, ..., T_L); left empty it becomes the largest code of each level plus one.
    Items may share a semantic ID. Raises ArtifactError naming `source` when the parts do not fit.
    """

    item_ids: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    titles: Sequence[str]
    popularity: npt.NDArray[np.int64]
    codebook_sizes: tuple[int, ...] = ()
    source: str = "catalogue"

    def __post_init__(self) -> None:
        n = len(self.item_ids)
        for name, kind in (("item_ids", "int64"), ("codes", "int32"), ("popularity", "int64")):
            object.__setattr__(self, name, _narrowed(self.source, name, getattr(self, name), kind))
        if n == 0:
            raise ArtifactError(self.source, "holds no items")
        if self.codes.ndim != 2 or self.codes.shape[0] != n or self.codes.shape[1] == 0:
            raise ArtifactError(self.source, f"codes have shape {self.codes.shape}, not ({n}, L)")
        if len(self.titles) != n or self.popularity.shape != (n,):
            raise ArtifactError(
                self.source, f"{n} items, {len(self.titles)} titles, {self.popularity.shape} counts"
            )
        if not self.codebook_sizes:
            object.__setattr__(self, "codebook_sizes", tuple(int(c) + 1 for c in self.codes.max(axis=0)))
        sizes = np.asarray(self.codebook_sizes)
        if sizes.shape != (self.codes.shape[1],):
            raise ArtifactError(self.source, f"{len(sizes)} codebook sizes for {self.codes.shape[1]} levels")
        wrong = np.argwhere((self.codes < 0) | (self.codes >= sizes))
        if len(wrong):
            row, column = wrong[0]
            raise ArtifactError(
                self.source,
                f"code_{column + 1} of item {self.item_ids[row]} is {self.codes[row, column]},"
                f" outside 0..{sizes[column] - 1}",
            )
        if (self.popularity < 0).any():
            raise ArtifactError(self.source, "popularity has negative counts")
        ids = self._sorted_ids
        if (ids[1:] == ids[:-1]).any():
            raise ArtifactError(self.source, f"item_id {ids[1:][ids[1:] == ids[:-1]][0]} appears twice")

    @property
    def levels(self) -> int:
        """L, the number of codes in a semantic ID."""
        return self.codes.shape[1]

    def __len__(self) -> int:
        return len(self.item_ids)

    @cached_property
    def _order(self) -> npt.NDArray[np.int32]:
        """Rows in ascending item id: int32[n]."""
        return np.argsort(self.item_ids, kind="stable").astype(np.int32)

    @cached_property
    def _sorted_ids(self) -> npt.NDArray[np.int64]:
        return self.item_ids[self._order]

    @cached_property
    def popularity_scores(self) -> npt.NDArray[np.float32]:
        """float32[n]: what an item scores where popularity answers."""
        return log_shares(self.popularity)

    @cached_property
    def meaning(self) -> str:
        """sha256 of which item has which semantic ID: what a model that was trained with them knows."""
        sha = hashlib.sha256(json.dumps(list(self.codebook_sizes)).encode())
        for part in (self._sorted_ids, self.codes[self._order]):
            sha.update(np.ascontiguousarray(part).tobytes())
        return sha.hexdigest()

    @cached_property
    def _rows_by_id(self) -> npt.NDArray[np.int32] | None:
        """Rows of all ids from the one before the least to the one after the largest, -1 where there is no item.

        None where ids lie too far apart for that.
        """
        least, largest = int(self._sorted_ids[0]), int(self._sorted_ids[-1])
        if largest - least >= max(_IDS_AN_ITEM * len(self), _IDS_ANYWAY):
            return None
        rows = np.full(largest - least + 3, -1, np.int32)
        rows[self.item_ids - least + 1] = np.arange(len(self), dtype=np.int32)
        return rows

    def rows_of(self, item_ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Catalogue rows of any int64 ids [m]: int32[m], -1 where the catalogue has no such item."""
        wanted = np.asarray(item_ids, np.int64)
        if self._rows_by_id is not None:
            # Differences may wrap around, but never onto an item's place, as that would be 2^64 ids away. Places
            # outside the table become its ends, which are no items.
            before = self._sorted_ids[:1] - 1
            return self._rows_by_id.take(wanted - before, mode="clip")
        place = np.minimum(np.searchsorted(self._sorted_ids, wanted), len(self) - 1)
        return np.where(self._sorted_ids[place] == wanted, self._order[place], np.int32(-1)).astype(np.int32)

    def save(self, path: Path) -> None:
        """Write the parquet file; the codebook sizes travel in its schema metadata."""
        columns: dict[str, object] = {"item_id": pa.array(self.item_ids, pa.int64())}
        for level in range(self.levels):
            columns[f"code_{level + 1}"] = pa.array(self.codes[:, level], pa.int32())
        columns["title"] = pa.array(list(self.titles), pa.string())
        columns["popularity"] = pa.array(self.popularity, pa.int64())
        sizes = json.dumps(list(self.codebook_sizes)).encode()
        pq.write_table(pa.table(columns).replace_schema_metadata({_SIZES_KEY: sizes}), path)

    @classmethod
    def load(cls, path: Path, titles: bool = True) -> Catalogue:
        """Read and check `catalogue.parquet`. Raises ArtifactError naming the file and the problem.

        Without `titles`, which are read at a microsecond each and hold up every thread, all are empty.
        """
        try:
            # Not read_table, whose imports are 20 MB of every process that serves.
            with pq.ParquetFile(check_regular(path)) as file:
                columns = file.schema_arrow.names
                names = sorted((c for c in columns if re.fullmatch(r"code_\d+", c)), key=lambda c: int(c[5:]))
                if not names or names != [f"code_{level + 1}" for level in range(len(names))]:
                    raise ArtifactError(path, f"code columns are {names}, not code_1..code_L")
                missing = [c for c in ("item_id", "title", "popularity") if c not in columns]
                if missing:
                    raise ArtifactError(path, f"lacks the columns {', '.join(missing)}")
                read = ["item_id", *names, "popularity", *(["title"] if titles else [])]
                table = file.read(read, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise ArtifactError(path, f"not a readable parquet file: {error}") from error
        for column in ("item_id", *names, "popularity"):
            if table[column].null_count or not pa.types.is_integer(table.schema.field(column).type):
                raise ArtifactError(path, f"column {column} holds nulls or is not of an integer type")
        try:
            sizes = tuple(int(t) for t in json.loads((table.schema.metadata or {}).get(_SIZES_KEY, b"[]")))
        except (ValueError, TypeError) as error:
            raise ArtifactError(path, f"unreadable codebook sizes: {error}") from error
        return cls(
            item_ids=_numbers(table["item_id"]),
            codes=np.stack([_numbers(table[c]) for c in names], axis=1),
            titles=[t or "" for t in table["title"].to_pylist()] if titles else [""] * len(table),
            popularity=_numbers(table["popularity"]),
            codebook_sizes=sizes,
            source=str(path),
        )


def _narrowed(source: str, name: str, values: npt.ArrayLike, kind: str) -> npt.NDArray[Any]:
    """`values` in the type they are kept in. Raises ArtifactError for one that would become another number."""
    given = np.asarray(values)
    kept = np.ascontiguousarray(given, kind)
    if given.dtype != kept.dtype and (kept != given).any():
        limits = np.iinfo(kind)
        raise ArtifactError(
            source, f"{name} hold {given[kept != given][0]}, outside {limits.min}..{limits.max}"
        )
    return kept


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of integers without nulls. Its own `to_numpy` imports pandas where there is one: 25 MB."""
    return np.from_dlpack(column.combine_chunks())
