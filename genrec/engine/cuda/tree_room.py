"""Where graphs read a catalogue's tree: buffers that stay where they are, with room for versions that come later."""

from __future__ import annotations

from functools import partial
from weakref import ref

import torch

from genrec.engine.cuda.beams import DeviceTree
from genrec.engine.cuda.graphs import padded

MULTIPLE = 8  # sizes are whole multiples of it: a tree of a few nodes has room too


def with_room(count: int, limit: int) -> int:
    """At least a quarter more than `count`, at most `limit`, which no catalogue exceeds."""
    return min(padded(count + count // 4 + 1, MULTIPLE), limit)


class TreeRoom:
    """The tree that is being read, in `tree`: its lengths and families are what there is room for.

    Nobody's children are behind the last real node, so what lies there is never a beam. Beside the trees of all
    versions a room takes up to 1.6 times the largest one's 8 bytes a node for codes and 8 for pointers: at most 40 MB
    for a million items and three levels. What a request blocks takes a byte for every node that has room.
    """

    tree: DeviceTree

    def __init__(self, first: DeviceTree, former: TreeRoom | None = None) -> None:
        """Holds `first`, and has room for all that `former` has room for."""
        least = former.tree if former else first
        nodes, families, paths = [1], [], 1
        for level, size in enumerate(first.sizes):
            paths *= size
            count, family = len(first.codes[level]), first.families[level]
            nodes.append(max(with_room(count, paths), len(least.codes[level])))
            families.append(max(with_room(family, size), least.families[level]))
        zeros = partial(torch.zeros, dtype=torch.int64, device=first.codes[0].device)
        pointers, codes = [zeros(count + 1) for count in nodes[:-1]], [zeros(count) for count in nodes[1:]]
        self.tree = DeviceTree(first.sizes, pointers, codes, families)
        self._held: ref[DeviceTree] | None = None  # a version that is retired is freed, whatever lies here
        self.hold(first)

    def fits(self, tree: DeviceTree) -> bool:
        """Whether all levels of `tree` have room."""
        mine = self.tree
        nodes = all(len(codes) <= len(room) for codes, room in zip(tree.codes, mine.codes, strict=True))
        return nodes and all(own <= room for own, room in zip(tree.families, mine.families, strict=True))

    def hold(self, tree: DeviceTree) -> None:
        """Copy a tree that fits to where graphs read it, if another one is there. Never while one is captured."""
        if self._held and self._held() is tree:
            return
        self._held, mine = None, self.tree  # none until all of it is there
        for n, (pointers, codes) in enumerate(zip(tree.pointers, tree.codes, strict=True)):
            mine.pointers[n][: len(pointers)].copy_(pointers)
            mine.pointers[n][len(pointers) :].fill_(len(codes))  # the last pointer: these have no children
            mine.codes[n][: len(codes)].copy_(codes)  # what is behind them is read, and counts nothing
        self._held = ref(tree)
