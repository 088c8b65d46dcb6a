"""What a request says of the items that it may be answered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.answerable import THESE_ALONE, Choice, of_groups
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.steps import MOST_GROUPS, Tensors, check_tensor

MARKED_A_ROW = 32  # items of the catalogue per row: with more, sorting the rows takes less than marking them


def excluded_by(
    request: Tensors, known: NDArray[np.int32], catalogue: Catalogue, groups: Groups
) -> tuple[NDArray[np.int32], int]:
    """`excluded` as steps exchange it, int32[any], and how many items may be answered; `known`: rows of the history.

    Raises InputError.
    """
    hidden = known[:0]
    if "exclude_history" in request and check_tensor(request, "exclude_history", np.bool_, 1)[0]:
        hidden = known
    if "exclude" in request:
        hidden = np.concatenate((hidden, _rows(request, "exclude", catalogue)))
    hidden = distinct(hidden, len(catalogue))
    choice = _choice(request, groups)
    if "only" in request:
        wanted = distinct(_rows(request, "only", catalogue), len(catalogue))
        if choice:
            wanted = wanted[groups.listed(choice).allows(wanted)]
        left = np.setdiff1d(wanted, hidden, assume_unique=True)
        return np.concatenate((np.array([THESE_ALONE], np.int32), left)), len(left)
    if choice:
        chosen = groups.listed(choice)
        hidden = hidden[chosen.allows(hidden)]
        many = len(chosen.rows) if chosen.alone else len(catalogue) - len(chosen.rows)
        return np.concatenate((of_groups(choice), hidden)), many - len(hidden)
    nothing = np.array([-1], np.int32)
    return (hidden if len(hidden) else nothing), len(catalogue) - len(hidden)


def _choice(request: Tensors, groups: Groups) -> Choice | None:
    """None where no groups are named. As with items, an empty list of `exclude_groups` leaves nothing out, one of
    `only_groups` nothing in.
    """
    any_of, none_of = (
        groups.places(field, check_tensor(request, field, np.int64, most=MOST_GROUPS))
        if field in request
        else None
        for field in ("only_groups", "exclude_groups")
    )
    choice = Choice(any_of, none_of or ())
    return None if choice == Choice() else choice


def _rows(request: Tensors, field: str, catalogue: Catalogue) -> NDArray[np.int32]:
    """Of the items in a list of the request, the catalogue's rows int32[any]; unknown items drop out."""
    rows = catalogue.rows_of(check_tensor(request, field, np.int64))
    return rows[rows >= 0]


def distinct(rows: NDArray[np.int32], items: int) -> NDArray[np.int32]:
    """Of rows int32[m] of a catalogue of `items` each once, ascending: int32[any]."""
    if items > MARKED_A_ROW * len(rows):
        return np.unique(rows)
    marked = np.zeros(items, np.bool_)
    marked[rows] = True
    return np.flatnonzero(marked).astype(np.int32)
