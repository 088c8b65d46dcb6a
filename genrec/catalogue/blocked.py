"""What of the tree of semantic IDs a request must not reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Int32 = npt.NDArray[np.int32]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Blocked:
    """What one request must not reach: per level the sorted nodes all of whose items are excluded.

    `nodes[l-1]` is int32[any] with node numbers of level l, ascending; of those below a blocked one some may be left
    out, as no beam gets there.
    """

    nodes: tuple[Int32, ...]

    def at(self, level: int) -> Int32:
        """Blocked nodes of a level, ascending: int32[any]."""
        return self.nodes[level - 1]


def above(leaves: Int32, first_child: Sequence[Int32]) -> Blocked:
    """Blocks leaves all of whose items are excluded, and paths all of whose children are.

    `leaves` int32[E], ascending, has the leaf of every excluded item. Costs E L log P, however large the catalogue is.
    """
    nodes = [_saturated(leaves, first_child[-1])]
    for pointers in reversed(first_child[:-1]):
        nodes.insert(0, _saturated(_parents(nodes[0], pointers), pointers))
    return Blocked(tuple(nodes))


def beside(leaves: Int32, children_into: Sequence[Int32]) -> Blocked:
    """Blocks whatever does not lead to `leaves`, int32[E] ascending: the siblings of what does.

    `children_into` has the pointers into every level, from the root's. Costs E L log P, and what it blocks.
    """
    leading = [np.unique(leaves)]
    for pointers in reversed(children_into[1:]):
        leading.insert(0, np.unique(_parents(leading[0], pointers)))
    nodes, parents = [], np.zeros(1, np.int32)
    for pointers, left in zip(children_into, leading, strict=True):
        children = _children(parents, pointers)
        closed = np.ones(len(children), np.bool_)
        closed[np.searchsorted(children, left)] = False  # both ascend, and all of `left` are children
        nodes.append(children[closed])
        parents = left
    return Blocked(tuple(nodes))


def _children(nodes: Int32, pointers: Int32) -> Int32:
    """All children of nodes int32[E], in their order: int32[any]."""
    first, counts = pointers[nodes], pointers[nodes + 1] - pointers[nodes]
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts).astype(np.int32) + np.arange(counts.sum(), dtype=np.int32)


@njit(cache=True, nogil=True)
def _parents(nodes: Array, pointers: Array) -> Array:
    """Parent of every node: int32[E] ascending, by binary search in int32[P + 1] -> int32[E] ascending."""
    out = np.empty(len(nodes), np.int32)
    for i in range(len(nodes)):
        if i > 0 and nodes[i] < pointers[out[i - 1] + 1]:
            out[i] = out[i - 1]
        else:
            out[i] = np.searchsorted(pointers, nodes[i], side="right") - 1
    return out


@njit(cache=True, nogil=True)
def _saturated(parents: Array, pointers: Array) -> Array:
    """The nodes that occur in `parents`, int32[E] ascending, as often as they have children -> int32[any]."""
    out = np.empty(len(parents), np.int32)
    kept = run = 0
    for i in range(len(parents)):
        run += 1
        if i + 1 == len(parents) or parents[i + 1] != parents[i]:
            if run == pointers[parents[i] + 1] - pointers[parents[i]]:
                out[kept] = parents[i]
                kept += 1
            run = 0
    return out[:kept]
