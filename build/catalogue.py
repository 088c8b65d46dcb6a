"""New versions of an artifact's catalogue: items in, items out. Nothing that is served changes; a swap does that.

A version is the whole catalogue anew, with its indices, in a folder of its own (`build.version`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from build.item_keys import LIKE, with_ids
from build.version import base_of, load_version, write_version
from genrec.artifact import load_config
from genrec.catalogue.files import CATALOGUE, ITEM_TOKENS
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import ITEMS, find_names, load_keys, save_keys
from genrec.catalogue.soundness import changed_item
from genrec.catalogue.versions import FOLDER, folder_of, locked, of_another_catalogue, versions_of
from genrec.errors import ArtifactError, InputError
from genrec.files import check_spared
from genrec.models.config import ModelConfig
from genrec.progress import counting
from genrec.rank.item_tokens import find_tokens, token_numbers
from training.data.keys import INT64, LEAST, is_plain
from training.data.tables import ITEM, TITLE, name_of, read_table, required, text, where


def add_items(artifact: Path, items: Path, base: int | None = None) -> int:
    """The items of a CSV or Parquet file on top of version `base` (by itself: see `base_of`); the new version's number.

    Columns: item (the id that is served, or a key that gets one: `with_ids`), title, code_1 to code_L, and popularity
    (0 without it). Codes come of what an item is seen with as much as of its title, and a new item has not been seen.
    Who has none says with the column `like`, in their place, which item of the version it shares a semantic ID with.
    Where items have t tokens of their own, also token_1 to token_t. Raises InputError naming file, column, line and
    limit.
    """
    config = load_config(artifact)
    check_spared([items], artifact / FOLDER, [ITEMS])
    given = read_table(items)
    with locked(artifact):
        base = base_of(artifact, base)
        old, tokens, groups = load_version(artifact, base, config)
        table, keys = with_ids(given, items, artifact)
        new = _read_items(table, given, items, old, base)
        new_tokens = _read_tokens(table, items, tokens.shape[1], artifact, config)
        _refuse_known(given, items, new, old, base)
        versions = versions_of(artifact)
        with counting("codes", len(versions), "version") as bar:
            for version in versions:
                bar.update()
                if _is_past(artifact, version):
                    continue
                other = Catalogue.load(folder_of(artifact, version) / CATALOGUE, titles=False)
                _refuse_changed(given, items, new, other, version)
        both = Catalogue(
            np.concatenate((old.item_ids, new.item_ids)),
            np.concatenate((old.codes, new.codes)),
            [*old.titles, *new.titles],
            np.concatenate((old.popularity, new.popularity)),
            config.codebook_sizes,
        )
        if keys is not None:
            save_keys(artifact, keys)  # first: should the rest fail, they get the same ids again
        facts = {"from": base, "added": len(new)}
        same = Groups(groups.names, groups.members, len(both))  # a new item is in none
        return write_version(artifact, both, np.concatenate((tokens, new_tokens)), same, facts)


def remove_items(artifact: Path, item_ids: NDArray[np.int64], base: int | None = None) -> int:
    """Version `base` (by itself: see `base_of`) without `item_ids` int64[any]; the new version's number. Raises
    InputError.
    """
    config = load_config(artifact)
    with locked(artifact):
        base = base_of(artifact, base)
        old, tokens, groups = load_version(artifact, base, config)
        rows = old.rows_of(item_ids)
        if (rows < 0).any():
            unknown = item_ids[rows < 0].tolist()
            key = find_names(load_keys(artifact), unknown[:1]).get(unknown[0])
            first = f"{unknown[0]}, whose key is {key!r}" if key else unknown[0]
            problem = f"have {len(unknown)} that version {base} lacks, the first is {first}"
            raise InputError("items", problem, f"its {len(old)} items")
        keep = np.ones(len(old), bool)
        keep[rows] = False
        if not keep.any():
            raise InputError("items", f"are all {len(old)} of version {base}", "at least one item stays")
        titles = [title for title, kept in zip(old.titles, keep, strict=True) if kept]
        left = Catalogue(
            old.item_ids[keep], old.codes[keep], titles, old.popularity[keep], config.codebook_sizes
        )
        facts = {"from": base, "removed": len(old) - len(left)}
        return write_version(artifact, left, tokens[keep], _kept(groups, keep), facts)


def _kept(groups: Groups, keep: NDArray[np.bool_]) -> Groups:
    """Of the rows to `keep`, bool[n], by their new numbers; a group that loses all of its items stays."""
    places = np.cumsum(keep, dtype=np.int32) - 1
    members = [places[rows[keep[rows]]].astype(np.int32) for rows in groups.members]
    return Groups(groups.names, members, int(keep.sum()))


def read_item_ids(items: str) -> NDArray[np.int64]:
    """Item ids of a file with a column `item`, or of a list `1,2,3`. Raises InputError."""
    path = Path(items)
    if path.suffix or is_file(path):
        return _whole_numbers(read_table(path), path, ITEM)
    try:
        return np.array([int(item) for item in items.split(",")], np.int64)
    except (ValueError, OverflowError) as error:
        limit = "whole numbers as 1,2,3, or a CSV or Parquet file with a column item"
        raise InputError("items", f"are {items!r}", limit) from error


def is_file(path: Path) -> bool:
    """Whether there is such a file; a long list of ids is no name of one."""
    try:
        return path.is_file()
    except OSError:
        return False


def _read_items(table: pa.Table, given: pa.Table, path: Path, old: Catalogue, base: int) -> Catalogue:
    """The file as a catalogue of its own, `old` being that of version `base`; as `given` it spells its items, for
    errors. Raises InputError.
    """
    like = LIKE in table.column_names
    levels = len(old.codebook_sizes)
    limit = (
        f"the column {LIKE} names an item whose codes it gets"
        if like
        else f"the model has {levels} levels; or in their place a column {LIKE}, an item whose codes it gets"
    )
    missing = f"codes, which a title cannot replace, and no column {LIKE}"
    ids = _whole_numbers(table, path, ITEM, LEAST)  # first, because it tells of other separators
    _check_numbered(table, path, "code", 0 if like else levels, missing, limit)
    _, first, count = np.unique(ids, return_index=True, return_counts=True)
    if (count > 1).any():
        row = int(np.flatnonzero(ids == ids[first[np.argmax(count > 1)]])[1])
        problem = f"{where(path, row)} has {_spelled(given, path, ITEM, row)} again"
        raise InputError(f"{path}, column item", problem, "every item once")
    codes = _codes_like(table, given, path, old, base) if like else _codes(table, path, old.codebook_sizes)
    titles = text(table, path, TITLE).to_pylist()
    popularity = np.zeros(len(ids), np.int64)
    if "popularity" in table.column_names:
        popularity = _whole_numbers(table, path, ("popularity",), 0)
    return Catalogue(ids, codes, titles, popularity, old.codebook_sizes, str(path))


def _codes(table: pa.Table, path: Path, sizes: Sequence[int]) -> NDArray[np.int32]:
    """int32[n, L] of the columns code_1 to code_L. Raises InputError."""
    levels = [
        _whole_numbers(table, path, (f"code_{level}",), 0, size - 1) for level, size in enumerate(sizes, 1)
    ]
    return np.stack(levels, 1).astype(np.int32)


def _codes_like(table: pa.Table, given: pa.Table, path: Path, old: Catalogue, base: int) -> NDArray[np.int32]:
    """int32[n, L]: of the items that the column `like` names. Raises InputError."""
    rows = old.rows_of(_whole_numbers(table, path, (LIKE,)))
    if (unknown := np.flatnonzero(rows < 0)).size:
        row = int(unknown[0])
        limit = f"one of the {len(old)} items of version {base}"
        problem = f"{where(path, row)} is {_spelled(given, path, (LIKE,), row)}"
        raise InputError(f"{path}, column {LIKE}", problem, limit)
    return old.codes[rows]


def _read_tokens(
    table: pa.Table, path: Path, many: int, artifact: Path, config: ModelConfig
) -> NDArray[np.int32]:
    """The items' own tokens, int32[n, many], of the vocabulary. Raises InputError."""
    limit = f"{ITEM_TOKENS} has {many} for an item" if many else f"the artifact has no {ITEM_TOKENS}"
    _check_numbered(table, path, "token", many, "tokens", limit)
    tokens = np.empty((len(table), many), np.int32)
    if not many:
        return tokens
    numbers = token_numbers(artifact, config)
    for place in range(many):
        column = f"token_{place + 1}"
        given = _whole_numbers(table, path, (column,))
        tokens[:, place] = find_tokens(numbers, given)
        if (unknown := np.flatnonzero(tokens[:, place] < 0)).size:
            row = int(unknown[0])
            limit = (
                f"one of the {(numbers >= 0).sum()} tokens that the artifact keeps, of 0 to {numbers.max()}"
            )
            raise InputError(f"{path}, column {column}", f"{where(path, row)} is {given[row]}", limit)
    return tokens


def _check_numbered(table: pa.Table, path: Path, name: str, many: int, what: str, limit: str) -> None:
    """Raises InputError unless the columns `name`_1 to `name`_`many` are there, and no later one."""
    given = sorted(each for each in table.column_names if re.fullmatch(rf"{name}_\d+", each))
    wanted = [f"{name}_{number}" for number in range(1, many + 1)]
    if given != sorted(wanted):
        problem = f"has the columns {', '.join(given)}" if given else f"has no {what}"
        columns = f"columns {', '.join(wanted)}" if wanted else f"no {name}_1"
        raise InputError(str(path), problem, f"{columns}: {limit}")


def _whole_numbers(
    table: pa.Table, path: Path, names: tuple[str, ...], low: int = INT64.min, high: int = INT64.max
) -> NDArray[np.int64]:
    """A column of whole numbers in a range, int64[n]. InputError names the first line that is not."""
    numbers = np.empty(len(table), np.int64)
    for row, value in enumerate(required(table, path, names).to_pylist()):
        number = int(value) if is_plain(value) else None
        if number is None or not low <= number <= high:
            field, limit = f"{path}, column {name_of(table, names)}", f"a whole number, {low} to {high}"
            raise InputError(field, f"{where(path, row)} is {value}", limit)
        numbers[row] = number
    return numbers


def _spelled(given: pa.Table, path: Path, names: tuple[str, ...], row: int) -> str:
    """An item of a row as the file has it: an id, or a key in quotes."""
    item = required(given, path, names)[row].as_py()
    return str(item) if is_plain(item) else repr(item)


def _refuse_changed(given: pa.Table, path: Path, new: Catalogue, other: Catalogue, version: int) -> None:
    """Raises InputError for an item of the file that has other codes in a version."""
    if (changed := changed_item(new, other)) is None:
        return
    row, there = changed
    item, here = _spelled(given, path, ITEM, row), new.codes[row].tolist()
    whose = f", those of {_spelled(given, path, (LIKE,), row)}," if LIKE in given.column_names else " here"
    problem = f"{where(path, row)}: item {item} has the codes {here}{whose} and {there} in version {version}"
    raise InputError(str(path), problem, "an item keeps its codes")


def _is_past(artifact: Path, version: int) -> bool:
    """Whether it is of a catalogue that was, under whose codes no model is asked again."""
    with suppress(ArtifactError):  # of a damaged version nobody knows
        return of_another_catalogue(artifact, version)
    return False


def _refuse_known(given: pa.Table, path: Path, new: Catalogue, old: Catalogue, base: int) -> None:
    changed = changed_item(new, old)
    known = np.flatnonzero(old.rows_of(new.item_ids) >= 0)
    if changed is None and len(known):
        row = int(known[0])
        problem = f"{where(path, row)}: version {base} has {_spelled(given, path, ITEM, row)} already"
        raise InputError(f"{path}, column item", problem, "items that are not there yet")
