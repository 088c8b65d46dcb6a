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

    `nodes[l-1]` is int32[any] with node numbers of level l, ascending. Where few may be answered, `open[l-1]` has,
    likewise, the nodes that lead to them: what is not among these is blocked too.
    """

    nodes: tuple[Int32, ...]
    open: tuple[Int32, ...] | None = None

    def at(self, level: int) -> Int32:
        """Blocked nodes of a level, ascending: int32[any]."""
        return self.nodes[level - 1]

    def open_at(self, level: int) -> Int32 | None:
        """The only nodes of a level that are not blocked, ascending, int32[any]; None where all others are open."""
        return None if self.open is None else self.open[level - 1]

    def closes(self, leaves: Int32) -> npt.NDArray[np.bool_]:
        """Which of leaves int32[any] are blocked: bool of the same shape."""
        closed = _among(leaves, self.nodes[-1])
        return closed if self.open is None else closed | ~_among(leaves, self.open[-1])


class Base(NamedTuple):
    """What a list of items leaves: `leaves` int32[E] of each, ascending, and per level the nodes that are open, where
    they `alone` may be answered, or else closed.
    """

    alone: bool
    leaves: Int32
    nodes: tuple[Int32, ...]

    def and_above(self, leaves: Int32, first_child: Sequence[Int32]) -> Blocked:
        """Blocks besides what `above` does, of items int32[E'] that are open here."""
        if not len(leaves):
            return (
                Blocked(tuple(_NONE for _ in first_child), self.nodes) if self.alone else Blocked(self.nodes)
            )
        more = above(leaves, first_child, self)
        if self.alone:
            return Blocked(more, self.nodes)
        both = zip(self.nodes, more, strict=True)
        return Blocked(tuple(_merged(closed, added) if len(added) else closed for closed, added in both))


_NONE = np.zeros(0, np.int32)


def above(leaves: Int32, first_child: Sequence[Int32], base: Base | None = None) -> tuple[Int32, ...]:
    """Leaves all of whose items are excluded, or closed by `base`, and paths all of whose children are; per level.

    `leaves` int32[E], ascending, has the leaf of every excluded item. Costs E L log P, however large the catalogue is.
    """
    nodes: list[Int32] = []
    parents, alone = leaves, base is not None and base.alone
    below = _NONE if base is None else base.leaves
    for level in range(len(first_child), 0, -1):
        items = level == len(first_child)
        nodes.insert(0, _saturated(parents, first_child[level - 1], below, alone, items))
        if level > 1:
            parents = _parents(nodes[0], first_child[level - 2])
            below = _NONE if base is None else base.nodes[level - 1]
    return tuple(nodes)


def ways_to(leaves: Int32, first_child: Sequence[Int32]) -> tuple[Int32, ...]:
    """Per level the nodes that lead to `leaves`, int32[E] ascending: int32[any], ascending. Costs E L log P."""
    nodes = [_once(leaves)]
    for pointers in first_child[-2::-1]:
        nodes.insert(0, _once(_parents(nodes[0], pointers)))
    return tuple(nodes)


def rehearse(first_child: Sequence[Int32]) -> None:
    """Compile what the first request with a choice of groups, and rows beside it, would wait for."""
    above(np.zeros(1, np.int32), first_child)
    ways_to(np.zeros(1, np.int32), first_child)
    _merged(_NONE, _NONE)


def _among(leaves: Int32, nodes: Int32) -> npt.NDArray[np.bool_]:
    """Which of leaves int32[any] are among nodes int32[P], ascending: bool of the same shape. Costs log P each."""
    if not len(nodes):
        return np.zeros(leaves.shape, np.bool_)
    found: npt.NDArray[np.bool_] = nodes[np.minimum(np.searchsorted(nodes, leaves), len(nodes) - 1)] == leaves
    return found


def _once(ascending: Int32) -> Int32:
    """Each of int32[E] once: int32[any]."""
    return ascending[np.diff(ascending, prepend=-1) > 0]


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
def _saturated(parents: Array, pointers: Array, below: Array, alone: bool, items: bool) -> Array:
    """The nodes that occur in `parents`, int32[E] ascending, as often as they have children left -> int32[any].

    Their children begin at `pointers`, int32[P + 1]. Those in `below`, int32[any] ascending, are closed already, or,
    where they are `alone`, none but these are open; of `items` it has the leaf of each.
    """
    out = np.empty(len(parents), np.int32)
    kept = run = 0
    for i in range(len(parents)):
        run += 1
        if i + 1 == len(parents) or parents[i + 1] != parents[i]:
            parent = parents[i]
            first, end = (parent, parent + 1) if items else (pointers[parent], pointers[parent + 1])
            left = np.searchsorted(below, end) - np.searchsorted(below, first)
            if not alone:
                left = pointers[parent + 1] - pointers[parent] - left
            if run == left:
                out[kept] = parent
                kept += 1
            run = 0
    return out[:kept]
