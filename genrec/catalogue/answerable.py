"""Which catalogue rows a request may be answered, as steps exchange it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from genrec.errors import InputError

THESE_ALONE = -2  # at the head of rows: they are all that may be answered


class Listed(NamedTuple):
    """Catalogue rows int64[any], distinct and ascending: all but these may be answered, or these alone."""

    rows: npt.NDArray[np.int64]
    alone: bool


def listed(rows: npt.ArrayLike, items: int) -> Listed:
    """Excluded catalogue rows, int[any], or after `THESE_ALONE` the only ones to answer; -1 is no row. InputError."""
    given = np.asarray(rows)
    if given.size and given.dtype.kind not in "iu":
        raise InputError("excluded_rows", f"is of type {given.dtype}", "integers")
    alone = bool(given.size) and int(given[0]) == THESE_ALONE
    given = given[1:] if alone else given
    if given.size and (int(given.min()) < -1 or int(given.max()) >= items):
        raise InputError(
            "excluded_rows",
            f"span {given.min()} to {given.max()}",
            f"rows 0 to {items - 1}, or -1, all behind a {THESE_ALONE} or not",
        )
    distinct = np.unique(given.astype(np.int64))
    return Listed(distinct[1:] if distinct.size and distinct[0] < 0 else distinct, alone)
