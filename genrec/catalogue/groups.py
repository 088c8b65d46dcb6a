"""Named groups of items that a catalogue version has, such as a category, or what is on sale.

A request names groups in the place of long lists. What of the tree of semantic IDs they leave open is worked out once
per choice of groups (`ValidityIndex.blocked`), as STATIC does for one set of items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genrec.catalogue.answerable import Choice, Listed
from genrec.catalogue.files import GROUPS
from genrec.catalogue.group_number import group_name, group_number, unknown_group
from genrec.catalogue.remembered import Remembered
from genrec.errors import ArtifactError, InputError
from genrec.tensor_file import read_tensors, readable, write_tensors

FORMAT, VERSION = "genrec-groups", "1"
SHOWN, SHOWN_BYTES = 20, 2000  # of names in an error: of a longer one gRPC would make another error

Int32 = npt.NDArray[np.int32]


class Groups:
    """G groups of a catalogue of n items: `names`, and `members[g]`, int32[any], the rows of each, ascending."""

    def __init__(self, names: Sequence[str], members: Sequence[Int32], items: int) -> None:
        """Raises InputError for rows that are none, and for names that are there twice, or have one number."""
        self.names, self.members, self.items = tuple(names), tuple(members), items
        if len(self.members) != len(self.names):
            raise InputError("groups", f"are {len(self.names)} names", f"{len(self.members)}, one for each")
        self._places: dict[int, int] = {}
        for place, name in enumerate(self.names):
            other = self._places.setdefault(group_number(name), place)
            if other != place:
                problem = f"{self.names[other]!r} and {name!r} have one number, {group_number(name)}"
                raise InputError("groups", problem, "names of different numbers")
        for name, rows in zip(self.names, self.members, strict=True):
            ascending = bool((np.diff(rows, prepend=-1) > 0).all())
            if rows.dtype != np.int32 or rows.ndim != 1 or not ascending or (rows >= items).any():
                raise InputError(f"group {name!r}", "has rows that are none", f"ascending, 0 to {items - 1}")
        # Not of a method: in a cycle with its cache, a version would outlive its last use
        self.listed = Remembered(partial(_listed, self.members), lambda listed: (listed.rows,))

    def __len__(self) -> int:
        return len(self.names)

    def places(self, field: str, numbers: npt.ArrayLike) -> tuple[int, ...]:
        """Of groups by their numbers, int64[any], the places, ascending. Raises InputError about `field`."""
        found = {self._places.get(int(number)) for number in np.asarray(numbers)}
        if None in found:
            unknown = next(int(n) for n in np.asarray(numbers) if int(n) not in self._places)
            raise InputError(field, unknown_group(unknown), self._known())
        return tuple(sorted(place for place in found if place is not None))

    def _known(self) -> str:
        """The groups there are, for an error."""
        if not self.names:
            return "none: `genrec catalogue group` makes them"
        known = [n if str(group_number(n)) == n else f"{group_number(n)} ({n})" for n in self.names[:SHOWN]]
        while len(known) > 1 and len(", ".join(known).encode()) > SHOWN_BYTES:
            known.pop()
        others = len(self) - len(known)
        return ", ".join([*known, *([f"{others} others"] if others else [])])

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        sizes = np.array([len(rows) for rows in self.members], np.int64)
        rows = np.concatenate((np.zeros(0, np.int32), *self.members))
        metadata = {"format": FORMAT, "version": VERSION, "names": json.dumps(self.names)}
        metadata["sha256"] = _digest(metadata["names"], sizes, rows)
        write_tensors(path, {"sizes": sizes, "rows": rows}, metadata)

    @classmethod
    def load(cls, folder: Path, items: int) -> Groups:
        """Of a catalogue version of `items` items; none where it has no such file. Raises ArtifactError."""
        path = folder / GROUPS
        if not path.exists():
            return cls((), (), items)
        with readable(path, "file of groups"):
            metadata, tensors = read_tensors(path, FORMAT, VERSION)
            names, sizes, rows = metadata["names"], tensors["sizes"], tensors["rows"]
            if metadata.get("sha256") != _digest(names, sizes, rows):
                raise ArtifactError(path, "does not match its own checksum")
            # A version may have been made when names were not of one spelling
            spelled: dict[str, list[Int32]] = {}
            for name, of in zip(json.loads(names), np.split(rows, np.cumsum(sizes))[:-1], strict=True):
                spelled.setdefault(group_name(name), []).append(of)
            return cls(list(spelled), [_union(members) for members in spelled.values()], items)


def _listed(members: tuple[Int32, ...], choice: Choice) -> Listed:
    """What a choice leaves: rows alone, or all but some. A choice of late costs nothing."""
    none_of = _union([members[place] for place in choice.none_of])
    if choice.any_of is None:
        return Listed(none_of, alone=False)
    any_of = _union([members[place] for place in choice.any_of])
    return Listed(any_of[Listed(none_of, alone=False).allows(any_of)], alone=True)


def _union(rows: list[Int32]) -> Int32:
    """Of lists that are ascending: int32[any], ascending."""
    return rows[0] if len(rows) == 1 else np.unique(np.concatenate((np.zeros(0, np.int32), *rows)))


def _digest(names: str, sizes: npt.NDArray[np.int64], rows: Int32) -> str:
    return hashlib.sha256(b"\0".join((names.encode(), sizes.tobytes(), rows.tobytes()))).hexdigest()
