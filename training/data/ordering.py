"""Interactions sorted by DuckDB, which spills to disk what is more than its share of memory."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.cores import usable_cores
from genrec.progress import ticking
from training.data.cutting import Ragged, even_blocks, histories_of, whole_users
from training.data.interactions import of_times, place_of
from training.data.tables import BLOCK_ROWS, where

MEMORY = "2GB"  # of the engine; what sorting needs beyond it goes to disk
BATCH_ROWS = 1 << 20


class Engine:
    """An `Arranger` of `rows`, a Parquet file of what `source` has; `scratch` is a folder for what it spills."""

    def __init__(self, source: Path, rows: Path, scratch: Path) -> None:
        self.count = pq.read_metadata(rows).num_rows
        self.source, self.place_of = source, partial(place_of, source, rows)
        # A literal, as DuckDB holds the whole result of what has parameters.
        self.rows = literal(rows)
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "temp_directory": str(scratch),
                "threads": usable_cores(),
                "preserve_insertion_order": True,  # without it what is sorted may come in another order
                "autoinstall_known_extensions": False,
            }
        )
        # Counted, not shown
        for setting in ("enable_progress_bar = true", "enable_progress_bar_print = false"):
            self._connection.execute(f"SET {setting}")

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException)):
            raise of_system(error) from error

    def keys(self, column: str) -> pa.Array:
        """As `Arranger` says."""
        query = (
            f"SELECT {column} FROM read_parquet({self.rows}, file_row_number = true)"
            " GROUP BY 1 ORDER BY min(file_row_number)"
        )
        with self._progress(f"keys of {column}s"):
            found = self._connection.sql(query).to_arrow_table()
        return found[column].cast(pa.string()).combine_chunks()

    def name(self, column: str, keys: pa.Array, ids: pa.Array) -> None:
        """As `Arranger` says."""
        self._connection.register("names", pa.table({"key": keys, "id": ids}))
        self._connection.execute(f"CREATE TABLE {column}s AS SELECT * FROM names")
        self._connection.unregister("names")

    def farthest(self) -> float:
        """As `Arranger` says."""
        found = self._connection.sql(f"SELECT max(abs(time)) FROM read_parquet({self.rows})").fetchone()
        return float(found[0]) if found else 0.0

    def first_time(self, low: float, high: float) -> tuple[str, str, float] | None:
        """As `Arranger` says."""
        query = (
            f"SELECT file_row_number, time FROM read_parquet({self.rows}, file_row_number = true)"
            f" WHERE abs(time) BETWEEN {low!r} AND {high!r} ORDER BY 1 LIMIT 1"
        )
        found = self._connection.sql(query).fetchone()
        return None if found is None else (of_times(self.source), where(self.source, found[0]), found[1])

    def unrated(self) -> tuple[str, str] | None:
        """As `Arranger` says."""
        query = f"SELECT min(file_row_number) FROM read_parquet({self.rows}, file_row_number = true) WHERE rating = 0"
        found = self._connection.sql(query).fetchone()
        return None if found is None or found[0] is None else (str(self.source), where(self.source, found[0]))

    def histories(self) -> Iterator[Ragged]:
        """As `Arranger` says."""
        batches = self.ordered()
        with ticking("histories", self.count, "row") as bar:
            for block in whole_users(even_blocks(batches, BLOCK_ROWS, bar)):
                yield histories_of(*block)

    def ordered(self) -> pa.RecordBatchReader:
        """Batches of ids `user`, `item` int64, `time` float64 and `rating` int8, by user, then time, then row."""
        named = {name for (name,) in self._connection.sql("SHOW TABLES").fetchall()}
        ids, joins = [], ""
        for column in ("user", "item"):
            table = f"{column}s"
            ids.append(f"{table}.id" if table in named else f"CAST(r.{column} AS BIGINT)")
            joins += f" JOIN {table} ON r.{column} = {table}.key" if table in named else ""
        query = (
            f"SELECT {ids[0]} AS user, {ids[1]} AS item, r.time AS time, r.rating AS rating"
            f" FROM read_parquet({self.rows}, file_row_number = true) r{joins} ORDER BY 1, 3, r.file_row_number"
        )
        with self._progress("sorting"):  # it gives the reader when all is sorted
            return self._connection.sql(query).to_arrow_reader(BATCH_ROWS)

    def _progress(self, what: str) -> AbstractContextManager[Any]:
        """A bar of the query that runs, in percent as DuckDB counts it (-1 before it does)."""
        return ticking(what, 100, "%", lambda: max(0, self._connection.query_progress()))


def of_system(error: duckdb.Error) -> OSError | MemoryError:
    """What DuckDB has no room for, as Python says it: it has types of its own, and room on the disk is memory too."""
    said = str(error)
    first = said.partition("\n")[0]
    if "max_temp_directory_size" in said or os.strerror(errno.ENOSPC) in said:
        return OSError(errno.ENOSPC, first)
    return OSError(first) if isinstance(error, duckdb.IOException) else MemoryError(first)


def literal(path: Path) -> str:
    """A path in SQL, none of its letters a pattern."""
    plain = re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''")
    return f"'{plain}'"
