"""Beams that are known before any is scored: where all of a few items are wanted, a search keeps all ways to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genrec.search.constraint import Constraint
from genrec.search.undecided import undecided

Array = npt.NDArray[Any]


class Known(NamedTuple):
    """Of the levels 1 to L - 1 the beams that a search cannot do without. Lists have an entry for each level."""

    nodes: list[Array]  # int32[W_l], ascending
    codes: list[Array]  # int64[W_l]
    parents: list[Array]  # from level 2 on: int64[W_l], places in the level before


def known_beams(constraint: Constraint, width: int) -> Known | None:
    """None where others may be kept, or not all of these: `width` beams are."""
    valid, blocked = constraint.valid, constraint.blocked
    if blocked is None or blocked.open is None or any(map(len, blocked.nodes)):
        return None
    if constraint.wanted < len(blocked.open[-1]) or max(map(len, blocked.open)) > width:
        return None
    nodes = [ways[undecided(valid, level, ways)] for level, ways in enumerate(blocked.open[:-1], 1)]
    if not any(map(len, nodes[1:])):  # one pass does anyway
        return None
    codes = [of[each].astype(np.int64) for of, each in zip(valid.codes, nodes, strict=False)]
    # Above a beam that is no item yet is none that is one
    parents = [
        np.searchsorted(above, np.searchsorted(first_child, each, "right") - 1)
        for above, each, first_child in zip(nodes, nodes[1:], valid.first_child, strict=False)
    ]
    return Known(nodes, codes, parents)
