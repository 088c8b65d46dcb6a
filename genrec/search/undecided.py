"""Which beams a pass of the generator can still tell apart.

Scores are renormalised over valid continuations, so a beam below which lies one semantic ID is that item already:
every code to come has probability 1, and no pass need score it. A catalogue fills few of the T x T pairs of codes,
so behind the second code these are most of the beams; xGR (section 6.1) masks their logits instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.catalogue.validity import ValidityIndex
from genrec.search.scratch import Scratch

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_INT64 = np.dtype(np.int64)
LEAST = 8  # beams of a pass: fewer take as long


def undecided(index: ValidityIndex, level: int, nodes: Array, scratch: Scratch | None = None) -> Int64:
    """Places in `nodes`, int32[W] of `level` < L, of those above more than one leaf: int64[W'], ascending."""
    places = _take(len(nodes), scratch)
    return places[: _undecided(nodes, index.first_child[level - 1 : -1], places)]


def rows_of_parents(parents: Array, places: Int64, former: Int64, scratch: Scratch | None = None) -> Int64:
    """Rows of the pass before in which the beams at `places` have their parents' KV: int64[W'], never decreasing.

    `parents` int32[W] are places among the beams before, of which that pass had those at `former`. An undecided
    beam's parent is undecided too, so it is among them.
    """
    rows = _take(len(places), scratch)
    _rows(parents, places, former, rows)
    return rows


def pass_sizes(most: int) -> list[int]:
    """How many beams a pass may have, padding included: 8, 16, 32, ... `most`. Few, because engines are slow the first
    time they see a shape.
    """  # fmt: skip
    sizes = [LEAST << n for n in range(most.bit_length()) if LEAST << n < most]
    return [*sizes, most]


def pass_size(count: int, most: int) -> int:
    """The size of a pass in which `count` beams, up to `most`, are wanted; 0 for none."""
    if count == 0:
        return 0
    return next(size for size in pass_sizes(most) if size >= count)


def _take(count: int, scratch: Scratch | None) -> Int64:
    return np.empty(count, np.int64) if scratch is None else scratch.take((count,), _INT64)


@njit(cache=True, nogil=True)
def _undecided(nodes: Array, pointers: tuple[Array, ...], places: Array) -> int:
    """Fill `places`; their number. pointers: of every level from the nodes' down to the leaves' parents."""
    n = 0
    for b in range(len(nodes)):
        first, end = nodes[b], nodes[b] + 1
        for k in range(len(pointers)):
            first, end = pointers[k][first], pointers[k][end]
        if end - first > 1:
            places[n] = b
            n += 1
    return n


@njit(cache=True, nogil=True)
def _rows(parents: Array, places: Array, former: Array, rows: Array) -> None:
    row = 0
    for i in range(len(places)):
        while row < len(former) and former[row] < parents[places[i]]:
            row += 1
        rows[i] = row
