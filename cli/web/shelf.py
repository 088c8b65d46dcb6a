"""What a person picks from: users with their histories, and titles to search as one types."""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cli.show import items_of
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.catalogue.typed import as_typed
from genrec.catalogue.versions import BASE, CATALOGUE, folder_of, of_another_catalogue, read_current
from genrec.errors import InputError
from genrec.manifest import Digests
from genrec.settings import MOST_VALUES
from training.data.histories import Histories
from training.data.keys import is_plain

FOUND = 12  # titles shown for what was typed
GROUPS_SHOWN = 3
LONGEST = 100  # characters of a search


class Shelf:
    """An artifact's titles and users. Catalogue versions are read when an answer first names them."""

    def __init__(self, artifact: Path) -> None:
        """Raises ArtifactError."""
        self._artifact = artifact
        self._versions: dict[int, Catalogue] = {}
        self._digest = Digests()
        self._texts: tuple[Catalogue, pa.Array] | None = (
            None  # of the catalogue whose titles were last wanted
        )
        self.items = len(self._current)
        path = artifact / "histories.parquet"
        self._histories = Histories.load(path) if path.exists() else None

    @property
    def users(self) -> int:
        """How many users have a history here."""
        return len(self._histories) if self._histories else 0

    @property
    def has_titles(self) -> bool:
        """Whether any item has one."""
        return bool(pc.any(pc.greater(pc.utf8_length(self._titles(self._current)), 0)).as_py())

    @property
    def groups(self) -> list[str]:
        """Names of some groups of the version that is served now, as they are typed."""
        folder = folder_of(self._artifact, self._served)
        return [as_typed(name) for name in Groups.load(folder, len(self._current)).names[:GROUPS_SHOWN]]

    def named(self, item_ids: NDArray[np.int64], version: int) -> list[dict[str, Any]]:
        """Ids and titles of a version."""
        return _named(self._catalogue(version), item_ids)

    def search(self, typed: str) -> list[dict[str, Any]]:
        """Items of the version that is served now whose title has `typed` in it: titles that begin with it first, then
        the popular ones; where there are none, the item of that id. Raises InputError, ArtifactError.
        """  # fmt: skip
        typed = typed.strip()
        if len(typed) > LONGEST:
            raise InputError("title", f"has {len(typed)} characters", f"at most {LONGEST}")
        if not typed:
            return []
        current = self._current
        titles = self._titles(current)
        rows = np.flatnonzero(_is_so(pc.match_substring(titles, typed, ignore_case=True)))
        begins = _is_so(pc.starts_with(titles, typed, ignore_case=True))[rows]
        rows = rows[np.lexsort((rows, -current.popularity[rows], ~begins))][:FOUND]
        if not len(rows) and typed.isdecimal() and len(typed) <= 19 and int(typed) < 2**63:
            rows = current.rows_of([int(typed)])
            rows = rows[rows >= 0]
        return _named(current, current.item_ids[rows])

    def ids(self, field: str, given: Any) -> list[int]:
        """Of items that are named by ids or keys, with commas between. Raises InputError, ArtifactError."""
        if not isinstance(given, str):
            raise InputError(field, f"is {given!r}"[:100], "a text of ids or keys, as 50,172")
        return items_of(self._artifact, field, given)

    def user(self, user: str) -> dict[str, Any]:
        """A user's id and history, oldest item first; of "" any user's. He is named by his id, or as the source spells
        him. Raises InputError.
        """  # fmt: skip
        if self._histories is None:
            raise InputError("user", "cannot be picked", "titles: this artifact has no histories.parquet")
        ids = self._histories.user_ids
        row = self._row_of(user) if user else random.randrange(len(ids))
        if row < 0:
            limit = f"one of {self.users} users, as {self._names[0].as_py() or ids[0]}"
            raise InputError("user", f"{user[:20]} is not in the data", limit)
        items = self._histories.of(np.array([row])).newest(MOST_VALUES).items
        return {"user": str(ids[row]), "history": _named(self._current, items)}

    def _row_of(self, user: str) -> int:
        """Of a user among the histories; -1 if he is none."""
        assert self._histories is not None
        found = np.flatnonzero(self._histories.user_ids == int(user)) if is_plain(user) else []
        return int(found[0]) if len(found) else int(self._names.index(user).as_py())

    @cached_property
    def _names(self) -> pa.ChunkedArray:
        """Of users, as the source spells them."""
        return pq.read_table(self._artifact / "histories.parquet", columns=["user"])["user"]

    def _catalogue(self, version: int) -> Catalogue:
        if version not in self._versions:
            self._versions[version] = Catalogue.load(folder_of(self._artifact, version) / CATALOGUE)
        return self._versions[version]

    @property
    def _current(self) -> Catalogue:
        return self._catalogue(self._served)

    @property
    def _served(self) -> int:
        """The current version; servers refuse one of a catalogue that was, and serve the one before."""
        for version in read_current(self._artifact).newest_first:
            if not of_another_catalogue(self._artifact, version, self._digest):
                return version
        return BASE

    def _titles(self, catalogue: Catalogue) -> pa.Array:
        if self._texts is None or self._texts[0] is not catalogue:
            titles = pa.array([str(title or "") for title in catalogue.titles], pa.string())
            self._texts = catalogue, titles
        return self._texts[1]


def _named(catalogue: Catalogue, item_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Ids and titles, "" where there is none. Ids as text: a browser rounds numbers beyond 2^53."""
    titles = [str(catalogue.titles[row]) if row >= 0 else "" for row in catalogue.rows_of(item_ids)]
    return [{"id": str(item), "title": title} for item, title in zip(item_ids, titles, strict=True)]


def _is_so(found: pa.Array) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return flags
