"""Histories with the time of every event, which `histories.parquet` does not keep: read again where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from training.cutting import first_of_duplicates
from training.data import Histories
from training.sources import WHEELS, unpack
from training.tables import ITEM, USER, read_table, required
from training.times import seconds


@dataclass(frozen=True, eq=False)
class Timed:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `rows` int64 (of the catalogue) and
    `times` int64 (seconds), all 0 where they are not known.
    """

    offsets: np.ndarray
    rows: np.ndarray
    times: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64[U]."""
        return np.diff(self.offsets)


def load_timed(artifact: Path, catalogue: Catalogue) -> Timed:
    """Histories of `artifact`, without items that the catalogue lacks; with times where the set is a named one.

    Raises InputError, ArtifactError.
    """
    path = artifact / "histories.parquet"
    histories = Histories.load(path)
    source = artifact / "source.json"
    name = read_json(source)["name"] if source.is_file() else ""
    times = (
        _times_of(name, artifact, histories) if name in WHEELS else np.zeros(len(histories.items), np.int64)
    )
    rows = catalogue.rows_of(histories.items).astype(np.int64)
    known = rows >= 0
    offsets = np.concatenate(([0], np.cumsum(known)))[histories.offsets]
    return Timed(offsets, rows[known], times[known])


def _times_of(name: str, artifact: Path, histories: Histories) -> np.ndarray:
    """int64[total] of a named set's histories; the events are sorted as `genrec data` sorts them."""
    names = pq.read_table(check_regular(artifact / "histories.parquet"), columns=["user"])["user"]
    items = pq.read_table(check_regular(artifact / "items.parquet"), columns=["item_id", "key"])
    with TemporaryDirectory() as folder:
        (path,) = unpack(name, artifact.parent / ".downloads", Path(folder), (".inter",))
        table = read_table(path)
        user = pc.index_in(required(table, path, USER), names.combine_chunks())
        row = pc.index_in(required(table, path, ITEM), items["key"].combine_chunks())
        time = seconds(table, path)
    found = sorted_times(histories, user, items["item_id"].to_numpy(), row, np.asarray(time, np.float64))
    if found is None:
        raise ArtifactError(artifact / "histories.parquet", f"is not of the events of {name}")
    return found


def sorted_times(
    histories: Histories, user: pa.Array, item_ids: np.ndarray, row: pa.Array, time: np.ndarray
) -> np.ndarray | None:
    """Times int64[total] of `histories`, of events in any order: user's place in them and item's row, null where it
    has none, and time float64[n]. None where they are other events.
    """
    kept = pc.is_valid(user).to_numpy(zero_copy_only=False)
    if row.filter(pa.array(kept)).null_count:
        return None
    who = user.filter(pa.array(kept)).to_numpy().astype(np.int64)
    item = item_ids[row.filter(pa.array(kept)).to_numpy()]
    order = np.lexsort((time[kept], who))  # stable: events of one second stay in file order
    who, item, when = who[order], item[order], time[kept][order]
    first = first_of_duplicates(who, item, when)
    same = np.array_equal(item[first], histories.items) and np.array_equal(
        np.bincount(who[first], minlength=len(histories)), histories.lengths
    )
    return when[first].astype(np.int64) if same else None
