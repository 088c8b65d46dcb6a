"""What of the tree of semantic IDs a request must not reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    def closes(self, leaves: Int32, first_child: Sequence[Int32]) -> npt.NDArray[np.bool_]:
        """Which of leaves int32[any] are blocked, or lie below what is: bool of the same shape."""
        nodes: Array = leaves
        closed = np.isin(nodes, self.nodes[-1])
        for blocked, pointers in zip(self.nodes[-2::-1], first_child[-2::-1], strict=True):
            nodes = np.searchsorted(pointers, nodes, side="right") - 1
            closed |= np.isin(nodes, blocked)
        return closed


def above(leaves: Int32, first_child: Sequence[Int32], left: Sequence[Int32] = ()) -> Blocked:
    """Blocks leaves all of whose items are excluded, and paths all of whose children are.

    `leaves` int32[E], ascending, has the leaf of every excluded item. Costs E L log P, however large the catalogue is.
    Where some are closed, `left` counts in the place of all children (see `Closed`).
    """
    left = left or first_child
    nodes = [_saturated(leaves, left[-1])]
    for pointers, count in zip(first_child[-2::-1], left[-2::-1], strict=True):
        nodes.insert(0, _saturated(_parents(nodes[0], pointers), count))
    return Blocked(tuple(nodes))


class Closed(NamedTuple):
    """What a choice of groups closes, and of what remains enough to block more of it.

    `left[l-1]` int32[P_l + 1] is a running sum over nodes of level l: of their children that are open, of leaves of
    their items.
    """

    blocked: Blocked
    left: tuple[Int32, ...]

    def and_above(self, leaves: Int32, first_child: Sequence[Int32]) -> Blocked:
        """As `above`, of items that are open here, with what is closed already."""
        more = above(leaves, first_child, self.left)
        both = zip(self.blocked.nodes, more.nodes, strict=True)
        return Blocked(tuple(_merged(closed, added) if len(added) else closed for closed, added in both))


def closed_to(allowed: npt.NDArray[np.bool_], rows: Int32, first_child: Sequence[Int32]) -> Closed:
    """Blocks leaves none of whose items are `allowed`, bool[n] by catalogue row, and paths none of whose children are.

    `rows` int32[n] are those of the leaves' items, in order. Costs n.
    """
    is_open: Array = allowed[rows]
    left: list[Int32] = []
    for pointers in reversed(first_child):
        left.insert(0, np.concatenate((np.zeros(1, np.int32), np.cumsum(is_open, dtype=np.int32)))[pointers])
        is_open = np.diff(left[0]) > 0
    closed = [~is_open]
    for pointers, sums in zip(
        first_child[:-1], left[1:], strict=True
    ):  # below what is closed, nothing need be
        below_open = np.repeat(np.diff(left[len(closed) - 1]) > 0, np.diff(pointers))
        closed.append(below_open & (np.diff(sums) == 0))
    return Closed(Blocked(tuple(np.flatnonzero(each).astype(np.int32) for each in closed)), tuple(left))


@njit(cache=True, nogil=True)
def _merged(many: Array, few: Array) -> Array:
    """Both of int32[any], ascending and distinct, in order; costs little more than a copy of `many`."""
    out = np.empty(len(many) + len(few), np.int32)
    start = 0
    for i in range(len(few)):
        end = start + np.searchsorted(many[start:], few[i])
        out[start + i : end + i] = many[start:end]
        out[end + i] = few[i]
        start = end
    out[start + len(few) :] = many[start:]
    return out


def beside(leaves: Int32, children_into: Sequence[Int32]) -> Blocked:
    """Blocks whatever does not lead to `leaves`, int32[E] ascending: the siblings of what does.

    `children_into` has the pointers into every level, from the root's. Costs E L log P, and what it blocks.
    """
    leading = [_once(leaves)]
    for pointers in reversed(children_into[1:]):
        leading.insert(0, _once(_parents(leading[0], pointers)))
    nodes, parents = [], np.zeros(1, np.int32)
    for pointers, left in zip(children_into, leading, strict=True):
        nodes.append(_others(parents, pointers, left))
        parents = left
    return Blocked(tuple(nodes))


def _once(ascending: Int32) -> Int32:
    """Each of int32[E] once: int32[any]."""
    return ascending[np.diff(ascending, prepend=-1) > 0]


@njit(cache=True, nogil=True)
def _others(parents: Array, pointers: Array, left: Array) -> Array:
    """Children of `parents`, int32[P], but for `left`, int32[E], all of which are some: ascending, int32[any]."""
    count = 0
    for parent in parents:
        count += pointers[parent + 1] - pointers[parent]
    out = np.empty(count - len(left), np.int32)
    kept = passed = 0
    for parent in parents:
        for child in range(pointers[parent], pointers[parent + 1]):
            if passed < len(left) and left[passed] == child:
                passed += 1
            else:
                out[kept] = child
                kept += 1
    return out


@njit(cache=True, nogil=True)
def _parents(nodes: Array, pointers: Array) -> Array:
    """Parent of every node, int32[E] ascending, whose children begin at int32[P + 1] -> int32[E] ascending.

    The next parent is sought from the last one on, in steps that double and then halve: it is mostly near.
    """
    out = np.empty(len(nodes), np.int32)
    parent = 0
    for i in range(len(nodes)):
        step = 1
        while parent + step < len(pointers) and pointers[parent + step] <= nodes[i]:
            parent += step
            step *= 2
        while step > 1:
            step //= 2
            if parent + step < len(pointers) and pointers[parent + step] <= nodes[i]:
                parent += step
        out[i] = parent
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
