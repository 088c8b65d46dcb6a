"""Interactions read, sorted and cut into histories by Ray Data, on as many machines as its cluster has.

The nodes run the functions that one machine runs: `read_interactions` of a file, `histories_of` of whole users. Ray
moves rows between them, spills, and repeats what a lost node had. Keys, and files of ids, are here.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from genrec.errors import GenrecError, InputError
from genrec.progress import ticking
from training.data.cutting import Ragged, histories_of
from training.data.histories import BATCH_USERS, lists
from training.data.interactions import SEQUENCES, files_of, of_times, read_interactions
from training.data.kinds import kind_of
from training.data.tables import where

PARTITION_ROWS = 1 << 22  # of whole users, sorted at once in a task
FILE = 1 << 40  # a row's place is its file's number times this, and its row there
ROOMS = Path(__file__).resolve().parents[2]
HISTORIES = pa.schema(
    [
        ("user", pa.int64()),
        ("items", pa.list_(pa.int64())),
        ("times", pa.list_(pa.float64())),
        ("ratings", pa.list_(pa.int8())),
    ]
)


class Cluster:
    """An `Arranger` of a file, or of a folder of files, whose nodes all see it under the same path."""

    def __init__(self, source: Path, address: str) -> None:
        """`address` of a cluster that runs, or `local` for one of this machine alone."""
        self.files = files_of(source)
        self._address = address
        self._places: dict[str, pa.Table] = {}
        self._names: dict[str, Any] = {}

    def __enter__(self) -> Cluster:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports to nobody
        try:
            check_listens(self._address)
            ray.init(
                self._address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOMS)}},
                log_to_driver=False, logging_level=logging.WARNING,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                "ray", f"{self._address!r}: {error}", "the address of a Ray cluster, or local"
            ) from error
        settings = ray.data.DataContext.get_current()
        settings.enable_progress_bars = sys.stderr.isatty()
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # it warns of having no bars
        try:
            with told():
                files = [{"number": n, "path": str(path.absolute())} for n, path in enumerate(self.files)]
                tasks = ray.data.from_items(files, override_num_blocks=len(files))
                self._rows = per_block(tasks, read_file).materialize()
                self.count = self._rows.count()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()

    def keys(self, column: str) -> pa.Array:
        """As `Arranger` says."""
        first = partial(first_places, column=column)
        with told():
            found = per_block(self._partitions(per_block(self._rows, first), column), first)
            table = pa.concat_tables(ray.get(found.to_arrow_refs()))
        self._places[column] = table.sort_by("place")
        return self._places[column][column].combine_chunks()

    def place_of(self, column: str, key: str) -> tuple[str, str]:
        """As `Arranger` says."""
        places = self._places[column]
        return self._where(places["place"][pc.index(places[column], key).as_py()].as_py())

    def _where(self, place: int) -> tuple[str, str]:
        number, row = divmod(place, FILE)
        path = self.files[number]
        line = f"interaction {row + 1}" if kind_of(path) in SEQUENCES else where(path, row)
        return str(path), line

    def name(self, column: str, keys: pa.Array, ids: pa.Array) -> None:
        """As `Arranger` says."""
        self._names[column] = ray.put(pa.table({"key": keys, "id": ids}))

    def farthest(self) -> float:
        """As `Arranger` says."""
        with told():
            table = pa.concat_tables(ray.get(per_block(self._rows, farthest_of).to_arrow_refs()))
        return float(pc.max(table["farthest"]).as_py())

    def first_time(self, low: float, high: float) -> tuple[str, str, float] | None:
        """As `Arranger` says."""
        with told():
            within = per_block(self._rows, partial(first_within, low=low, high=high))
            found = pa.concat_tables(ray.get(within.to_arrow_refs()))
        first = found.sort_by("place").to_pylist()[0]  # nulls are last
        if first["place"] is None:
            return None
        _, line = self._where(first["place"])
        return of_times(self.files[first["place"] // FILE]), line, first["time"]

    def unrated(self) -> tuple[str, str] | None:
        """As `Arranger` says."""
        with told():
            table = pa.concat_tables(ray.get(per_block(self._rows, first_unrated).to_arrow_refs()))
        first = pc.min(table["place"]).as_py()
        return None if first is None else self._where(first)

    def histories(self) -> Iterator[Ragged]:
        """As `Arranger` says."""
        rows = per_block(self._rows, partial(numbered, names=self._names))
        ordered = per_block(self._partitions(rows, "user"), cut).sort("user")
        with told(), ticking("histories", len(self._places["user"]), "user") as bar:
            for table in ordered.iter_batches(batch_size=BATCH_USERS, batch_format="pyarrow"):
                users = table["user"].to_numpy()
                lists_of = [table[name].combine_chunks() for name in HISTORIES.names[1:]]
                items, times, ratings = (each.flatten().to_numpy() for each in lists_of)
                yield users, items, times, ratings, lists_of[0].value_lengths().to_numpy()
                bar.update(len(users))

    def _partitions(self, rows: ray.data.Dataset, column: str) -> ray.data.Dataset:
        """The same rows in blocks that have all of a key's."""
        return rows.repartition(max(1, -(-self.count // PARTITION_ROWS)), keys=[column])


def check_listens(address: str) -> None:
    """Raises OSError where nobody does at a `host:port`: Ray itself would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.removeprefix("ray://").strip("[]"), int(port)), timeout=10).close()


def per_block(rows: ray.data.Dataset, work: Any) -> ray.data.Dataset:
    """`work` of every block as it lies, a pa.Table."""
    return rows.map_batches(work, batch_size=None, batch_format="pyarrow")


@contextmanager
def told() -> Iterator[None]:
    """An error of the data in a task is raised here as what it is, not as one of Ray."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, GenrecError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from None if cause else error.__cause__


def read_file(task: pa.Table) -> Iterator[pa.Table]:
    """What `read_interactions` reads of the files of `task`: `number` int64, `path`; with each row's place int64."""
    for file in task.to_pylist():
        first = file["number"] * FILE
        for block in read_interactions(Path(file["path"])):
            yield block.append_column("place", pa.array(np.arange(first, first + len(block))))
            first += len(block)


def farthest_of(rows: pa.Table) -> pa.Table:
    """The largest size of the `time` of `rows`: `farthest` float64, of no rows none."""
    return pa.table({"farthest": [pc.max(pc.abs(rows["time"])).cast(pa.float64())]})


def first_within(rows: pa.Table, low: float, high: float) -> pa.Table:
    """The first `place` int64 whose `time` float64 has a size from `low` to `high`, and that; of no such rows nulls."""
    size = pc.abs(rows["time"])
    found = rows.filter(pc.and_(pc.greater_equal(size, low), pc.less_equal(size, high))).sort_by("place")
    kinds = {"place": pa.int64(), "time": pa.float64()}
    return pa.table({name: pa.array(found[name].to_pylist()[:1] or [None], kinds[name]) for name in kinds})


def first_unrated(rows: pa.Table) -> pa.Table:
    """The first `place` int64 without a rating; of no such rows null."""
    return pa.table(
        {"place": pa.array([pc.min(rows.filter(pc.equal(rows["rating"], 0))["place"]).as_py()], pa.int64())}
    )


def first_places(rows: pa.Table, column: str) -> pa.Table:
    """The distinct keys of `column` string, and the first `place` int64 of each."""
    found = rows.group_by(column).aggregate([("place", "min")])
    return found.rename_columns({"place_min": "place"}).select([column, "place"])


def numbered(rows: pa.Table, names: dict[str, Any]) -> pa.Table:
    """Rows with ids int64 for keys: those that `names` has for a column, else the keys as numbers."""
    for place, column in enumerate(("user", "item")):
        if column in names:
            table = ray.get(names[column])
            ids = table["id"].take(pc.index_in(rows[column], value_set=table["key"].combine_chunks()))
        else:
            ids = rows[column].cast(pa.int64())
        rows = rows.set_column(place, column, ids)
    return rows


def cut(rows: pa.Table) -> pa.Table:
    """Rows of whole users -> HISTORIES, by ascending user."""
    if not len(rows):
        return HISTORIES.empty_table()
    ordered = rows.sort_by([(name, "ascending") for name in ("user", "time", "place")])
    columns = (ordered[name].to_numpy() for name in ("user", "item", "time", "rating"))
    users, items, times, ratings, lengths = histories_of(*columns)
    found = (lists(items, lengths), lists(times, lengths, pa.float64()), lists(ratings, lengths, pa.int8()))
    return pa.table([users, *found], schema=HISTORIES)
