"""Which catalogue rows a request may be answered, as steps exchange it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genrec.errors import InputError

THESE_ALONE = -2  # at the head of rows: they are all that may be answered
# At the head: two lists of groups follow, each behind its length (see `Choice`), and then rows
OF_GROUPS = -3
ANY = -1  # in the place of the first list: of whatever group

Mask = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """Places of groups: an item may be answered that is in one of `any_of`, unless None, and in none of `none_of`."""

    any_of: tuple[int, ...] | None = None
    none_of: tuple[int, ...] = ()


class Listed(NamedTuple):
    """Catalogue rows int32 or int64[any], distinct and ascending: all but these may be answered, or these alone; where
    a `choice` of groups is made, only of what that leaves.
    """

    rows: npt.NDArray[np.signedinteger[Any]]
    alone: bool
    choice: Choice | None = None

    def allows(self, rows: npt.NDArray[np.signedinteger[Any]]) -> Mask:
        """Which of `rows`, int[any], may be answered, as far as these rows say."""
        if not len(self.rows):
            return np.full(len(rows), not self.alone)
        # Of two types NumPy would make these rows of the other, all of them
        sought = rows.astype(self.rows.dtype, copy=False)
        places = np.minimum(np.searchsorted(self.rows, sought), len(self.rows) - 1)
        found: Mask = (self.rows[places] == rows) == self.alone
        return found


def of_groups(choice: Choice) -> npt.NDArray[np.int32]:
    """What `listed` reads as this choice, int32[any]; rows may follow."""
    numbers = [OF_GROUPS]
    for places in choice:
        numbers += [ANY] if places is None else [len(places), *places]
    return np.array(numbers, np.int32)


def listed(rows: npt.ArrayLike, items: int, groups: int = 0) -> Listed:
    """Excluded catalogue rows, int[any], or after `THESE_ALONE` the only ones to answer; -1 is no row. InputError.

    Before the excluded ones may stand a choice among so many `groups` (`of_groups`).
    """
    given = np.asarray(rows)
    if given.size and given.dtype.kind not in "iu":
        raise InputError("excluded_rows", f"is of type {given.dtype}", "integers")
    head = int(given[0]) if given.size else 0
    choice = None
    if head == OF_GROUPS:
        choice, given = _choice(given[1:], groups)
    alone = head == THESE_ALONE
    given = given[1:] if alone else given
    if given.size and (int(given.min()) < -1 or int(given.max()) >= items):
        raise InputError(
            "excluded_rows",
            f"span {given.min()} to {given.max()}",
            f"rows 0 to {items - 1}, or -1, all behind a {THESE_ALONE} or not",
        )
    distinct = np.unique(given.astype(np.int64))
    return Listed(distinct[1:] if distinct.size and distinct[0] < 0 else distinct, alone, choice)


def _choice(given: npt.NDArray[Any], groups: int) -> tuple[Choice, npt.NDArray[Any]]:
    """The choice at the head, and what follows it. Raises InputError."""
    any_of = None
    if given.size and int(given[0]) == ANY:
        given = given[1:]
    else:
        any_of, given = _places(given, groups)
    none_of, given = _places(given, groups)
    return Choice(any_of, none_of), given


def _places(given: npt.NDArray[Any], groups: int) -> tuple[tuple[int, ...], npt.NDArray[Any]]:
    """A list of places of `groups` behind its length, and what follows it. Raises InputError."""
    count = int(given[0]) if given.size else -1
    places = given[1 : 1 + count] if 0 <= count < given.size else None
    if places is None or (count and not 0 <= int(places.min()) <= int(places.max()) < groups):
        limit = f"two lists of places, 0 to {groups - 1}, each behind its length" if groups else "no groups"
        raise InputError("excluded_rows", f"begin with {OF_GROUPS} and no choice of these", limit)
    return tuple(sorted(set(places.tolist()))), given[1 + count :]
