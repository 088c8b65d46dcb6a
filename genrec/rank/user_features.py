"""What is known of users, `users.parquet`, as the numbers of values that an HSTU ranker of ratings reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.rank.hstu import FEATURES, LIMIT

USERS = "users.parquet"
Numbers = Mapping[str, Mapping[str, int]]  # feature -> value -> its number, from 1 on


def read_users(path: Path, features: Numbers | None = None) -> pa.Table:
    """`user_id` int64, ascending, and the text of each of `features` that is there, of all where none are given.

    Raises ArtifactError.
    """
    try:
        table = pq.read_table(check_regular(path))
        names = [
            name
            for name in table.column_names
            if name != "user_id" and (features is None or name in features)
        ]
        kinds = {"user_id": pa.int64(), **dict.fromkeys(names, pa.string())}
        found = pa.table({name: table[name].cast(kind) for name, kind in kinds.items()})
        found = found.sort_by("user_id").combine_chunks()
        ids = found["user_id"]
        if ids.null_count or (np.diff(ids.to_numpy()) == 0).any():
            raise ValueError("a user_id is null, or there twice")
    except (OSError, pa.ArrowException, LookupError, ValueError) as error:
        raise ArtifactError(path, f"not a readable file of users: {error}") from error
    return found


def load_numbers(folder: Path) -> Numbers:
    """Those that the ranker in `folder`, model/ or onnx/, has learnt; none if nothing says so. Raises ArtifactError."""
    path = folder / FEATURES
    found: Numbers = read_json(path) if path.exists() else {}
    try:
        given = [number for values in found.values() for number in values.values()]
        if "user_id" not in found and all(type(each) is int and 0 < each < LIMIT for each in given):
            return found
    except AttributeError:
        pass
    raise ArtifactError(path, "is not what values of features are numbered by, from 1 on")


def numbered(table: pa.Table, users: NDArray[np.int64], numbers: Numbers) -> NDArray[np.int32]:
    """Of `users` int64[n], int32[n, F], each the number of his value of a feature of `table`, as `read_users` gives it.

    0 where he is not there, or the feature, or his value has no number: that is unknown.
    """
    known = table["user_id"].to_numpy()
    row = np.searchsorted(known, users)
    there = row < len(known)
    there[there] = known[row[there]] == users[there]
    found = np.zeros((len(users), len(numbers)), np.int32)
    for column, (name, values) in zip(found.T, numbers.items(), strict=True):
        if name not in table.column_names:
            continue
        spelled = table[name].combine_chunks().take(pa.array(row[there]))
        place = pc.index_in(spelled, pa.array(list(values), pa.string()))
        of_place = pa.array(list(values.values()), pa.int32())
        column[there] = pc.fill_null(of_place.take(place), 0).to_numpy(zero_copy_only=False)
    return found
