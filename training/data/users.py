"""What is known of users beside what they did: features of one value each, `users.parquet`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.manifest import anew
from genrec.rank.hstu import MOST_FEATURES
from genrec.rank.user_features import USERS, Numbers, numbered, read_users
from genrec.words import counted
from training.data.tables import USER, header_of, is_unnamed, name_of, read_rows, required, text

MOST_VALUES = 1000  # of a feature: the model has a row for each


def read_features(source: Path, features: Sequence[str]) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Users of a table, string[n] and each once, and its columns `features`; if none are named, all that have a name of
    their own but the user's.

    A value is text, null where it is empty. Raises InputError.
    """
    table = read_rows(source, "user and features")
    users, own = required(table, source, USER), name_of(table, USER)
    if len(twice := pc.value_counts(users).filter(pc.greater(pc.value_counts(users).field("counts"), 1))):
        raise InputError(str(source), f"has the user {twice[0]['values'].as_py()!r} twice", "every user once")
    names = list(features) or named(table, own)
    if "user_id" in names:  # that of users.parquet
        problem = f"is beside column {own}, which names the users"
        raise InputError(f"{source}, column user_id", problem, "one of the two, or a feature of another name")
    if not 1 <= len(names) <= MOST_FEATURES:
        raise InputError(
            str(source), f"has {len(names)} columns beside {own}", f"1 to {MOST_FEATURES}, a feature each"
        )
    return users, {name: _values(table, source, name) for name in names}


def write_users(
    source: Path, features: Sequence[str], keys: pa.Array, ids: np.ndarray, path: Path
) -> list[str]:
    """`users.parquet` of a table `source`: `user_id`, and its `features`, as `read_features` has them.

    `keys` string[U] and `ids` int64[U] are the users of the interactions; others are left out. Returns the report.
    Raises InputError.
    """
    found, columns = read_features(source, features)
    at = pc.index_in(keys, found)
    if (missing := at.null_count) == len(keys):
        first, theirs = found[0].as_py(), keys[0].as_py()
        problem = f"names no user of the interactions: its first is {first!r}, theirs {theirs!r}"
        raise InputError(str(source), problem, "users as the interactions spell them")
    table = pa.table({"user_id": pa.array(ids), **{name: each.take(at) for name, each in columns.items()}})
    pq.write_table(table.take(np.argsort(ids)), path)
    said = [f"features of users: {', '.join(columns)}"]
    if missing:
        said[0] += f"; {counted(missing, 'user has', 'users have')} no row in {source}"
    if not features and any(map(is_unnamed, header_of(source))):
        said.append(f"columns of {source.name} without a name are not kept: they number rows")
    return said


def named(table: pa.Table, own: str) -> list[str]:
    """Columns of a table but that of the users, `own`. One without a name has pandas' numbers of rows, a value each."""
    return [name for name in table.column_names if name != own and not is_unnamed(name)]


def _values(table: pa.Table, source: Path, name: str) -> pa.Array:
    """A column as text, null where it is empty. Raises InputError."""
    values = pc.utf8_trim_whitespace(text(table, source, (name,)))
    values = pc.if_else(pc.equal(values, ""), None, values)
    if (distinct := pc.count_distinct(values).as_py()) > MOST_VALUES:
        raise InputError(
            f"{source}, column {name}",
            f"has {distinct} distinct values",
            f"at most {MOST_VALUES}; or none of it",
        )
    return values


def features_of(
    artifact: Path, user_ids: np.ndarray, numbers: Numbers | None = None
) -> tuple[np.ndarray, Numbers]:
    """Features of users int64[U] -> int64[U, F], and which number is which value of which feature.

    `numbers` are those of a model that is there. Without them every value of every feature gets one of its own, from 1
    on; 0 is unknown. Without `users.parquet` F is 0. Raises ArtifactError, where a model misses the file, or a column.
    """
    path = artifact / USERS
    if not path.exists():
        if numbers:
            problem = f"is not there, and the model has learnt {', '.join(numbers)}{anew(artifact, 'hstu')}"
            raise ArtifactError(path, problem)
        return np.zeros((len(user_ids), 0), np.int64), {}
    table = read_users(path, numbers)
    if missing := [name for name in numbers or () if name not in table.column_names]:
        problem = f"has no {', '.join(missing)}, which the model has learnt{anew(artifact, 'hstu')}"
        raise ArtifactError(path, problem)
    if numbers is None:
        numbers = _numbers_of(table.filter(pc.is_in(table["user_id"], pa.array(user_ids))), path)
    return numbered(table, user_ids, numbers).astype(np.int64), numbers


def _numbers_of(table: pa.Table, path: Path) -> Numbers:
    """Of values that are there. Raises ArtifactError."""
    if table.num_columns - 1 > MOST_FEATURES:
        problem = f"has {table.num_columns - 1} columns beside user_id, where {MOST_FEATURES} are allowed"
        raise ArtifactError(path, problem)
    numbers, first = {}, 1
    for name in table.column_names[1:]:
        values = table[name].combine_chunks().dictionary_encode().dictionary.to_pylist()
        numbers[name] = {value: number for number, value in enumerate(values, first)}
        first += len(values)
    return numbers
