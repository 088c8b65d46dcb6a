"""Named groups of an artifact's items, made and taken away: each time a new version of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from build.version import base_of, load_version, write_version
from genrec.artifact import load_config
from genrec.catalogue.group_number import group_name, group_number
from genrec.catalogue.groups import Groups
from genrec.catalogue.versions import locked
from genrec.errors import InputError
from training.data.tables import GENRE, name_of, read_table, required, text, where

GROUP = "group"
AMONG = "|"  # between the values that a file of items has for one of them
LONGEST = 200  # characters of a name
SHOWN = 40  # of one that is none


def group_items(artifact: Path, file: Path, item_ids: NDArray[np.int64], base: int | None = None) -> int:
    """Groups of a CSV or Parquet file on top of version `base` (by itself: see `base_of`); the new version's number.

    Column group: a name or a whole number; `item_ids` int64[n] are the items of its rows, and one of several groups has
    several rows. Or, of a file of items, a column as genre or category: none, one, or several with | between. A group
    of the file takes the place of one with its name; others stay. Raises InputError.
    """
    config = load_config(artifact)
    of_row, found = _names(file)
    coded = pc.dictionary_encode(found)
    names, of = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
    with locked(artifact):
        base = base_of(artifact, base)
        catalogue, tokens, groups = load_version(artifact, base, config)
        rows = catalogue.rows_of(item_ids)
        if (unknown := np.flatnonzero(rows < 0)).size:
            place = int(unknown[0])
            problem = f"{where(file, place)} is {item_ids[place]}, which version {base} lacks"
            raise InputError(f"{file}, column item", problem, f"its {len(catalogue)} items")
        both = dict(zip(groups.names, groups.members, strict=True))
        both |= zip(names, _members(rows[of_row], of, len(names)), strict=True)
        facts = {"from": base, "grouped": len(names)}
        return write_version(artifact, catalogue, tokens, _groups(both, len(catalogue)), facts)


def drop_groups(artifact: Path, names: Sequence[str], base: int | None = None) -> int:
    """Version `base` (by itself: see `base_of`) without groups; the new version's number. Raises InputError."""
    config = load_config(artifact)
    with locked(artifact):
        base = base_of(artifact, base)
        catalogue, tokens, groups = load_version(artifact, base, config)
        gone = {groups.places(f"group {name!r}", [group_number(name)])[0] for name in names}
        kept = [place for place in range(len(groups)) if place not in gone]
        left = {groups.names[place]: groups.members[place] for place in kept}
        facts = {"from": base, "ungrouped": len(gone)}
        return write_version(artifact, catalogue, tokens, _groups(left, len(catalogue)), facts)


def _names(file: Path) -> tuple[NDArray[np.int64], pa.Array]:
    """Every group that a row is in, int64[m] and string[m] without spaces around. Raises InputError for what no error
    or list could show, and for a file without any.
    """
    table = read_table(file)
    column = name_of(table, (GROUP, *GENRE))
    if column == GROUP:
        found = required(table, file, (GROUP,))
        of_row = np.arange(len(found))
    else:
        lists = pc.split_pattern(text(table, file, (column,)), AMONG)
        of_row, found = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
    found = pc.utf8_trim_whitespace(found)
    coded = pc.dictionary_encode(found)  # pyarrow's own normalisation to NFC gives NFD (release 22)
    found = pa.array(map(group_name, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)
    named = pc.not_equal(found, "").to_numpy(zero_copy_only=False)
    of_row, found = of_row[named], found.filter(pa.array(named))
    field, limit = (
        f"{file}, column {column}",
        f"a name of at most {LONGEST} characters, without control characters",
    )
    if not len(found):
        raise InputError(field, "is empty", limit)
    fit = pc.match_substring_regex(found, rf"^[^\p{{Cc}}]{{1,{LONGEST}}}$").to_numpy(zero_copy_only=False)
    if (unfit := np.flatnonzero(~fit)).size:
        place = int(unfit[0])
        problem = f"{where(file, int(of_row[place]))} is {found[place].as_py()[:SHOWN]!r}"
        raise InputError(field, problem, limit)
    return of_row, found


def _members(rows: NDArray[np.int32], of: NDArray[np.int32], groups: int) -> list[NDArray[np.int32]]:
    """Of pairs of a row int32[m] and a group int32[m] every group's rows, int32[any], ascending, each once."""
    order = np.lexsort((rows, of))
    rows, of = rows[order], of[order]
    first = (np.diff(of, prepend=-1) != 0) | (np.diff(rows, prepend=-1) != 0)
    rows, of = rows[first], of[first]
    return np.split(rows, np.searchsorted(of, np.arange(1, groups)))


def _groups(members: Mapping[str, NDArray[np.int32]], items: int) -> Groups:
    """In the order of their names."""
    names = sorted(members)
    return Groups(names, [members[name] for name in names], items)
