"""Interactions in blocks, from a table or from sequences: who, what, when and how liked, in file order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.progress import counting
from training.data.json_object import read_each_once
from training.data.kinds import check_file, kind_of
from training.data.tables import (
    BLOCK_ROWS,
    ITEM,
    RATING,
    TIME,
    USER,
    clean,
    column,
    header_of,
    name_of,
    read_blocks,
    required,
    text,
    where,
)
from training.data.times import seconds
from training.data.utf8 import unreadable

TABLES = (".parquet", ".csv", ".tsv", ".inter")
SEQUENCES = (".txt", ".json")
SCHEMA = pa.schema(
    [("user", pa.string()), ("item", pa.string()), ("time", pa.float64()), ("rating", pa.int8())]
)
SEQUENCE_LINES = 1 << 14
SHOWN = 1 << 12  # bytes of a first line, in which a header would show
SEQUENCE = '{"user": [item, ...]} or text; events as CSV, TSV or Parquet'
MOST_RATING = 100
_RATING = r"^\+?0*(?:[1-9][0-9]?|100)(?:\.0*)?$"  # whole, 1 to MOST_RATING, also as `5.0`


def files_of(path: Path) -> list[Path]:
    """A file; or of a folder all files of interactions, by name, as if they were one. Raises InputError."""
    if not path.is_dir():
        return [path]
    found = sorted(
        each for each in path.iterdir() if kind_of(each) in (*TABLES, *SEQUENCES) and each.is_file()
    )
    if not found:
        raise InputError(str(path), "holds no interactions", f"files {', '.join((*TABLES, *SEQUENCES))}")
    return found


def has_times(path: Path) -> bool:
    """Whether `time` is when it was, and not the position within a sequence. Raises InputError."""
    return not any(kind_of(each) in SEQUENCES for each in files_of(path))


def has_ratings(path: Path) -> bool:
    """Whether a file has a column of them, or one of the files of a folder. Raises InputError."""
    tables = [each for each in files_of(path) if kind_of(each) in TABLES]
    return any(name in header_of(each) for each in tables for name in RATING)


def write_interactions(source: Path, path: Path) -> None:
    """Any file of interactions -> Parquet of `user`, `item` (keys as spelled), `time` and `rating`, in file order.

    `time` is in seconds, or the position within a sequence; `rating` is 0 where there is none. Raises InputError.
    """
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=1) as writer:
        for block in read_interactions(source):
            writer.write_table(block)


def read_interactions(path: Path) -> Iterator[pa.Table]:
    """Blocks of SCHEMA. Raises InputError."""
    if kind_of(path) in SEQUENCES:
        yield from read_sequences(path)
        return
    for first, table in read_blocks(path, (USER, ITEM, TIME), (RATING,)):
        users, items = (required(table, path, names, first) for names in (USER, ITEM))
        yield pa.table([users, items, seconds(table, path, first), ratings_in(table, path)], schema=SCHEMA)


def ratings_in(table: pa.Table, path: Path) -> np.ndarray:
    """Ratings int8[n] of a table, 0 where there is none that is a whole number, 1 to MOST_RATING. Raises InputError."""
    if name_of(table, RATING) not in table.column_names:
        return np.zeros(len(table), np.int8)
    column(table, path, RATING)  # not there twice
    try:
        found = pc.utf8_trim_whitespace(text(table, path, RATING))
    except InputError:  # a list, say: no rating
        return np.zeros(len(table), np.int8)
    whole = pc.if_else(pc.match_substring_regex(found, _RATING), found, "0")
    return whole.cast(pa.float32()).cast(pa.int8()).to_numpy()


def of_times(path: Path) -> str:
    """A table that can be read, and its column of times: for errors."""
    return f"{path}, column {next(name for name in TIME if name in header_of(path))}"


def unread_columns(path: Path) -> list[str]:
    """Those of a table that can be read, or of the first of a folder, which are not in SCHEMA."""
    first = files_of(path)[0]
    names = [] if kind_of(first) in SEQUENCES else header_of(first)
    read = {next((each for each in group if each in names), None) for group in (USER, ITEM, TIME, RATING)}
    return [name or "one without a name" for name in names if name not in read]


def place_of(source: Path, rows: Path, column: str, key: str) -> tuple[str, str]:
    """Where a `key` of `column` (user, item) first stands, for errors: file and line.

    `rows` is what `write_interactions` wrote of `source`.
    """
    first = 0
    with pq.ParquetFile(rows) as file:
        for batch in file.iter_batches(BLOCK_ROWS):
            row = batch[column].index(key).as_py()
            if row >= 0:
                break
            first += len(batch)
    if kind_of(source) in SEQUENCES:
        return str(source), f"the sequence of user {batch['user'][row].as_py()!r}"
    return str(source), where(source, first + row)


def read_sequences(path: Path) -> Iterator[pa.Table]:
    """Lines `user item item ...` oldest first, or JSON {user: [item, ...]}; `time` is the position."""
    check_file(path, SEQUENCE)
    if kind_of(path) == ".txt" and _has_header(path):
        problem = "begins with the header of a table, and a name in .txt says sequences"
        raise InputError(str(path), problem, SEQUENCE)
    try:
        sequences = _of_json(path) if kind_of(path) == ".json" else _of_lines(path)
        line, known = 0, set()
        while rows := list(islice(sequences, SEQUENCE_LINES)):
            for row in rows:
                line += 1
                if len(row) < 2:
                    raise InputError(str(path), f"line {line} holds no items", "user item item ...")
                if row[0] in known:  # in which order came what is on both lines?
                    raise InputError(
                        str(path), f"line {line} has the user {row[0]!r} again", "a line per user"
                    )
                known.add(row[0])
            yield _table(rows)
    except ArtifactError as error:
        raise unreadable(path, error.problem, SEQUENCE) from error
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(path, f"cannot be read: {error}", SEQUENCE) from error
    if not line:
        raise InputError(str(path), "is empty", "one user per line")


def _has_header(path: Path) -> bool:
    """Whether a first line names the columns of users and of items."""
    with path.open("rb") as file:
        first = file.readline(SHOWN).decode("utf-8-sig", "replace")
    words = set(clean(re.split(r"[\s,;|]+", first.replace('"', ""))))
    return not words.isdisjoint(USER) and not words.isdisjoint(ITEM)


def _of_json(path: Path) -> Iterator[list[str]]:
    # Of a user who is there twice: in which order came what is in both lists?
    sequences = read_each_once(path, "user", "a list per user")
    if not isinstance(sequences, dict):  # events, say
        raise TypeError("it is no object with a user under every name")
    with counting(f"reading {path.name}", len(sequences), "user") as bar:
        for user, items in sequences.items():
            bar.update()
            if not user.strip():
                raise TypeError("a user has no name")
            # A text would be taken for its letters, and null for an item named None.
            if not items or not isinstance(items, list) or not all(map(_is_key, items)):
                raise TypeError(f"the items of user {user!r} are no list of names or whole numbers")
            yield [user, *map(str, items)]


def _is_key(item: object) -> bool:
    return type(item) is int or (isinstance(item, str) and bool(item.strip()))


def _of_lines(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as file, counting(f"reading {path.name}", path.stat().st_size, "B") as bar:
        for line in file:
            bar.update(len(line))
            yield line.decode("utf-8-sig").split()  # some editors write a mark before the text


def _table(rows: list[list[str]]) -> pa.Table:
    lengths = np.array([len(row) - 1 for row in rows])
    users = pa.array([row[0] for row in rows]).take(np.repeat(np.arange(len(rows)), lengths))
    items = [item for row in rows for item in row[1:]]
    times = np.concatenate([np.arange(n, dtype=np.float64) for n in lengths])
    none = np.zeros(len(times), np.int8)
    return pa.table([users, pa.array(items, pa.string()), times, none], schema=SCHEMA)
