"""Users whose histories are in the artifact: a request that names one of them need not bring his history."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.settings import MOST_VALUES
from genrec.steps import Tensors, check_tensor

HISTORIES = "histories.parquet"
log = logging.getLogger("genrec.known_users")
KINDS = {"history": np.int64, "times": np.int64, "ratings": np.int32}  # of a request's tensors
GROUPS = 4  # row groups in memory: `genrec data` writes 4,096 users to each


class KnownUsers:
    """Reads a row group when one of its users is first asked for; of a server that is never asked, nothing."""

    def __init__(self, artifact: Path) -> None:
        self._path = artifact / HISTORIES
        self._group = lru_cache(GROUPS)(self._read)

    def complete(self, request: Tensors, also: Sequence[str] = ()) -> Tensors:
        """The request; without a `history`, with the whole one of its `user_id`, and what `also` names of its items
        (times, ratings), where it is known. Raises InputError, ArtifactError.
        """
        if "history" in request:
            return request
        if "user_id" not in request:
            raise InputError("history", "is missing", f"int64[n], or the user_id of a user of {HISTORIES}")
        if not self._path.exists():
            raise InputError("history", "is missing", f"int64[n]; {HISTORIES} is not in the artifact")
        user = int(check_tensor(request, "user_id", np.int64, 1)[0])
        names = [name for name in also if name not in request]
        try:
            found = self._of(user, names)
        except (ArtifactError, OSError, pa.ArrowException, LookupError, ValueError, AttributeError) as error:
            log.exception("known users")  # where the file lies is nothing for who asks
            problem = "not a readable histories file; the server's log says why"
            raise ArtifactError(HISTORIES, problem) from error
        if not found:
            raise InputError("user_id", f"is {user}, who is not in {HISTORIES}", "a user of it, or a history")
        return request | found

    def _of(self, user: int, names: Sequence[str]) -> Tensors:
        """His newest items and what there is of `names`, as a request has them; nothing of who is not there."""
        place = max(bisect_right(self._least, user) - 1, 0)
        users, group = self._group(place)
        row = int(np.searchsorted(users, user))
        if row == len(users) or users[row] != user:
            return {}
        columns = {"history": "items", **{name: name for name in names if name in group.column_names}}
        newest = {
            name: group[column][row].values.to_numpy()[-MOST_VALUES:] for name, column in columns.items()
        }
        return {name: values.astype(KINDS[name])[None] for name, values in newest.items()}

    @cached_property
    def _file(self) -> pq.ParquetFile:
        """Open from then on: who writes another file in its place does not change what is read here."""
        return pq.ParquetFile(check_regular(self._path), memory_map=True)

    @cached_property
    def _least(self) -> list[int]:
        """The first user of every row group: they ascend."""
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        return [int(group.column(0).statistics.min) for group in groups]

    def _read(self, place: int) -> tuple[NDArray[np.int64], pa.Table]:
        """A row group's users int64[m], and its table."""
        wanted = [name for name in ("items", "times", "ratings") if name in self._file.schema_arrow.names]
        group = self._file.read_row_group(place, ["user_id", *wanted])
        return group["user_id"].to_numpy(), group
