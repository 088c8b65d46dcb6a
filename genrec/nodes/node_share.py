"""What a node's pool is to hold, as its server last found it: a small file beside the pool, for who looks or fills."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genrec.files import read_json
from genrec.json_fields import made_of
from genrec.nodes.placement import EVERYWHERE, owners_of, place, replicated
from genrec.pool.keys import Words

FILE_NAME = "placement.json"


@dataclass(frozen=True)
class NodeShare:
    """This is `node` of `nodes`; a share `sharded` of accesses may go to items that are not on every node.

    `replicated` is the share of items that are, of those that were placed last.
    """

    node: int = 0
    nodes: int = 1
    sharded: float = 0.0
    replicated: float = 1.0

    def place(self, frequencies: ArrayLike, keys: Words) -> NDArray[np.int32]:
        """int32[I], as `placement.place`: where items of these frequencies float[I] and keys uint64[I, 2] lie.

        Where no access may go to other nodes, on every one: those that nobody has asked for yet too.
        """
        if self.nodes == 1 or not self.sharded:
            return np.full(len(keys), EVERYWHERE, np.int32)
        return place(frequencies, self.nodes, self.sharded, owners_of(keys, self.nodes))

    def of(self, placed: NDArray[np.int32]) -> NodeShare:
        """The same with what was placed."""
        return NodeShare(self.node, self.nodes, self.sharded, replicated(placed))

    def save(self, pool: Path) -> None:
        """Into the pool's folder, whole or not at all."""
        new = pool / f"{FILE_NAME}.{os.getpid()}"
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.rename(pool / FILE_NAME)

    @classmethod
    def load(cls, pool: Path) -> NodeShare:
        """Of a pool; of one that says nothing, all. Raises ArtifactError."""
        path = pool / FILE_NAME
        if not path.exists():
            return cls()
        return made_of(cls, read_json(path), path)
