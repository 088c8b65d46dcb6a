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
from genrec.catalogue.group_number import group_number
from genrec.catalogue.groups import Groups
from genrec.catalogue.versions import locked
from genrec.errors import InputError
from training.data.tables import read_table, required, where

GROUP = ("group",)
LONGEST = 200  # characters of a name
SHOWN = 40  # of one that is none


def group_items(artifact: Path, file: Path, item_ids: NDArray[np.int64], base: int | None = None) -> int:
    """Groups of a CSV or Parquet file on top of version `base` (by itself: see `base_of`); the new version's number.

    Column group: a name or a whole number; `item_ids` int64[n] are the items of its rows, and one of several groups has
    several rows. A group of the file takes the place of one with its name; others stay. Raises InputError.
    """
    config = load_config(artifact)
    coded = pc.dictionary_encode(_names(file))
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
        both |= zip(names, _members(rows, of, len(names)), strict=True)
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


def _names(file: Path) -> pa.Array:
    """Of every row the group, without spaces around. Raises InputError for what no error or list could show."""
    found = pc.utf8_trim_whitespace(required(read_table(file), file, GROUP))
    fit = pc.match_substring_regex(found, rf"^[^\p{{Cc}}]{{1,{LONGEST}}}$").to_numpy(zero_copy_only=False)
    if (unfit := np.flatnonzero(~fit)).size:
        place = int(unfit[0])
        problem = f"{where(file, place)} is {found[place].as_py()[:SHOWN]!r}"
        limit = f"a name of at most {LONGEST} characters, without control characters"
        raise InputError(f"{file}, column group", problem, limit)
    return found


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
