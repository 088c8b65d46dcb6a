"""What a request may be answered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # they import numba, which a device run need not have
    from genrec.catalogue.blocked import Blocked
    from genrec.catalogue.validity import ValidityIndex


class Constraint(NamedTuple):
    """The items of the request's catalogue version, less those it excludes."""

    valid: ValidityIndex
    blocked: Blocked | None = None
    wanted: int = sys.maxsize  # the best that are asked for; the search need not get the others right
