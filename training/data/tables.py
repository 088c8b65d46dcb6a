"""Tables as people have them: CSV, TSV or Parquet, read in blocks; a bad value names its file, column and line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from genrec.errors import InputError
from genrec.progress import counting
from genrec.words import counted
from training.data.floats import spelled
from training.data.json_items import ACCEPTED as JSON_ITEMS
from training.data.json_items import read_json_items
from training.data.kinds import check_file, kind_of
from training.data.utf8 import unreadable

USER = ("user", "user_id")
ITEM = ("item", "item_id")
TIME = ("timestamp", "time", "date", "datetime")
RATING = ("rating",)
TITLE = ("title", "movie_title", "name")
GENRE = ("genre", "genres", "class", "category")
YEAR = ("release_year",)
BLOCK_ROWS, BLOCK_BYTES = 1 << 20, 16 << 20
TABLE = "a CSV, TSV or Parquet file"
ITEMS_FILE = f"{TABLE} with columns item, title; or {JSON_ITEMS}"
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
# Empty, or pandas' own: of `Unnamed: 0` `clean` leaves the word.
_UNNAMED = re.compile(r"|Unnamed|__index_level_\d+__")
csv.field_size_limit(1 << 30)  # a field may be as long as pyarrow takes it


def read_table(path: Path, accepted: str = TABLE) -> pa.Table:
    """CSV (comma), .tsv/.inter/.item (tab; `name:type` headers), Parquet, or items as JSON; CSV values as strings.

    Raises InputError, which says what is `accepted`.
    """
    return pa.concat_tables([table for _, table in read_blocks(path, accepted=accepted)])


def read_rows(path: Path, columns: str) -> pa.Table:
    """A table of events or of users, which are neither JSON nor sequences; `columns` says in words what it has.

    Raises InputError.
    """
    accepted = f"{TABLE} with columns {columns}"
    check_file(path, accepted)
    if kind_of(path) == ".json":
        raise InputError(str(path), "is JSON, as its name says", accepted)
    if kind_of(path) == ".txt" and _is_sequence(header_of(path)):
        problem = "has no header: lines `user item item ...` are read by `genrec data --interactions` alone"
        raise InputError(str(path), problem, accepted)
    return read_table(path)


def _is_sequence(first: list[str]) -> bool:
    """Whether a first line seems to be a user and his items, and no header."""
    named = {*USER, *ITEM, *TIME}.intersection(" ".join(first).split())
    return bool(first) and not named and not _separator_of(first)


def read_blocks(
    path: Path, wanted: Sequence[tuple[str, ...]] = (), also: Sequence[tuple[str, ...]] = (), accepted: str = TABLE
) -> Iterator[tuple[int, pa.Table]]:  # fmt: skip
    """The same in blocks: (row that is its first, from 0; table).

    Of Parquet only the columns `wanted` are read, and those of `also` that are there, each under the first of its names
    that is there. Raises InputError, of a file without a row too.
    """
    check_file(path, accepted)
    first = 0
    try:
        for table in {".parquet": _parquet, ".json": _json}.get(kind_of(path), _delimited)(
            path, wanted, also
        ):
            yield first, _plain(table)
            first += table.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        problem = f"cannot be read: {error}"
        if kind_of(path) == ".parquet":
            raise InputError(str(path), problem, accepted) from error
        raise unreadable(path, problem, accepted) from error
    if not first:
        raise InputError(str(path), "is empty", "at least one row under the header")


def header_of(path: Path) -> list[str]:
    """Names of the columns of CSV, TSV or Parquet that can be read."""
    if kind_of(path) == ".parquet":
        return clean(pq.read_schema(path).names)
    return clean(next(_lines(path), (1, []))[1])


def clean(names: list[str]) -> list[str]:
    """Names of columns without the types that RecBole writes behind them."""
    return [name.split(":")[0].strip() for name in names]


def _plain(table: pa.Table) -> pa.Table:
    """Under clean names. Several genres have | between, those too that a RecBole type says to have spaces between."""
    for place, name in enumerate(table.column_names):
        if name.endswith(":token_seq") and clean([name])[0] in GENRE:
            table = table.set_column(place, name, pc.replace_substring_regex(table[place], r"\s+", "|"))
    return table.rename_columns(clean(table.column_names))


def is_unnamed(column: str) -> bool:
    """Whether nobody named a column: it is empty in the header, or pandas called its numbers of rows so."""
    return _UNNAMED.fullmatch(column) is not None


def _json(path: Path, *_: Sequence[tuple[str, ...]]) -> Iterator[pa.Table]:
    yield read_json_items(path)


def _parquet(
    path: Path, wanted: Sequence[tuple[str, ...]], also: Sequence[tuple[str, ...]]
) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file, _bar(path, file.metadata.num_rows, "row") as bar:
        names, plain = file.schema_arrow.names, clean(file.schema_arrow.names)
        found, further = (
            [[name for name in group if name in plain] for group in of] for of in (wanted, also)
        )
        chosen = [names[plain.index(each[0])] for each in (*found, *further) if each]
        # One that is missing or there twice is named by whoever looks for it, among all of them.
        whole = not all(found) or any(plain.count(each[0]) > 1 for each in (*found, *filter(None, further)))
        for batch in file.iter_batches(BLOCK_ROWS, columns=None if whole else chosen or None):
            bar.update(len(batch))
            yield pa.Table.from_batches([batch])


def _delimited(path: Path, *_: Sequence[tuple[str, ...]]) -> Iterator[pa.Table]:
    """Delimited text as strings; a row with too many or too few fields names its line."""
    tabs = kind_of(path) != ".csv"
    lines = _lines(path)
    _, names = next(lines, (1, []))
    if next(lines, None) is None:  # pyarrow would say something else of each kind of nothing
        return
    bad: list[pyarrow.csv.InvalidRow] = []

    def note(row: pyarrow.csv.InvalidRow) -> str:
        bad.append(row)  # an exception raised here would be swallowed by pyarrow
        return "skip"

    with pa.OSFile(str(path)) as file, _bar(path, path.stat().st_size, "B") as bar:
        batches = pyarrow.csv.open_csv(
            file,
            # Row numbers are only known in one thread.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter="\t" if tabs else ",",
                quote_char=False if tabs else '"',
                newlines_in_values=not tabs,
                invalid_row_handler=note,
            ),
            convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
        for batch in batches:
            if bad:
                break
            bar.update(file.tell() - bar.n)
            yield pa.Table.from_batches([batch])
    if bad:
        problem = f"{where(path, bad[0].number - 2)} has {counted(bad[0].actual_columns, 'field')}"
        raise InputError(
            str(path), problem, f"{counted(bad[0].expected_columns, 'field')}: {', '.join(names)}"
        )


def _bar(path: Path, total: int, unit: str) -> Any:
    return counting(f"reading {path.name}", total, unit)


def column(table: pa.Table, path: Path, names: tuple[str, ...], optional: bool = False) -> pa.ChunkedArray:
    """The first of `names` the table has; an optional one that is absent reads as empty strings."""
    name = name_of(table, names)
    count = table.column_names.count(name)
    if count == 1:
        return table[name]
    if count > 1:
        raise InputError(f"{path}, column {name}", f"is there {count} times", "every column once")
    if optional:
        return pa.chunked_array([pa.array([""] * table.num_rows, pa.string())])
    problem = f"has no column {' or '.join(names)} (it has {', '.join(table.column_names)})"
    limit = f"a column named {' or '.join(names)}"
    if separator := _separator_of(table.column_names):
        problem += f": its fields are separated by {separator}"
        limit += f", fields separated by {'commas' if kind_of(path) == '.csv' else 'tabs'}"
    raise InputError(str(path), problem, limit)


def _separator_of(header: list[str]) -> str:
    """What seems to separate the fields of a header that was read as one; "" where nothing does."""
    return next((SEPARATORS[each] for each in SEPARATORS if len(header) == 1 and each in header[0]), "")


def name_of(table: pa.Table, names: tuple[str, ...]) -> str:
    """The first of `names` the table has, the first of all when it has none."""
    return next((name for name in names if name in table.column_names), names[0])


def text(
    table: pa.Table, path: Path, names: tuple[str, ...], optional: bool = False, first: int = 0
) -> pa.Array:
    """A column as strings, nulls and what pandas has for them, NaN, as the empty string, UUIDs as people write them;
    the table begins at row `first`.

    Raises InputError for what has no text, a list say, or is not UTF-8.
    """
    values = column(table, path, names, optional).combine_chunks()
    if pa.types.is_floating(values.type):
        values = spelled(values)
    elif isinstance(values.type, pa.UuidType):
        values = pa.array([each and str(each) for each in values.to_pylist()], pa.string())
    field = f"{path}, column {name_of(table, names)}"
    try:
        found = pc.fill_null(values.cast(pa.string()), "")
    except pa.ArrowException as error:
        raise InputError(field, f"is of type {values.type}", "text or numbers") from error
    check_utf8(found, field, path, first)
    return found


def check_utf8(values: pa.Array, field: str, path: Path, first: int = 0) -> None:
    """Raises InputError for text that Parquet calls so and that is not, by its row; the table begins at row `first`."""
    try:
        values.validate(full=True)
    except pa.ArrowException as error:
        rows = enumerate(values.cast(pa.large_binary()).to_pylist(), first)
        wrong = next(row for row, each in rows if each and each.decode(errors="replace").encode() != each)
        raise InputError(field, f"{where(path, wrong)} is not UTF-8", "text in UTF-8") from error


def required(table: pa.Table, path: Path, names: tuple[str, ...], first: int = 0) -> pa.Array:
    """A key column as strings; an empty value is an error that names its line. The table begins at row `first`."""
    values = text(table, path, names, first=first)
    empty = np.flatnonzero(pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False))
    if len(empty):
        field = f"{path}, column {name_of(table, names)}"
        raise InputError(field, f"{where(path, first + empty[0])} is empty", "a value in every row")
    return values


def where(path: Path, row: int) -> str:
    """How a person finds row `row` (from 0) of a table: by its line, where the file has lines."""
    if kind_of(path) in (".parquet", ".json"):
        return f"row {row + 1}" if kind_of(path) == ".parquet" else f"entry {row + 1}"
    line, _ = next(islice(_lines(path), row + 1, None), (row + 2, []))  # the header is the first
    return f"line {line}"


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of delimited text, header first: the line that each begins at, and its fields. Empty lines are none."""
    tabs, line = kind_of(path) != ".csv", 1
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.reader(
            file, delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
        )
        for fields in rows:
            if fields:
                yield line, fields
            line = rows.line_num + 1
