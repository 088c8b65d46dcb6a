"""Batches that cost all ranks the same (MTGRBoost, section 5.1).

Each rank draws sequences up to a target, as Algorithm 1 does. Equal tokens are not equal work where attention grows
with their square, so ranks then exchange the sequences they drew: the costliest goes to the rank with the least work so
far. The global batch stays what was drawn.

As printed, Algorithm 1 yields nothing forever at a sequence beyond the target, may drop the last sequences, and gives
ranks unequal numbers of steps, at which collectives hang. Here a sequence beyond the target is a batch of its own, what
is left at the end is a batch, and ranks agree at every step whether there is more: one without sequences gets an empty
batch as long as another has some.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from training.embedding.arrays import Int64
from training.sharded.world import World
from training.shards.sequences import Chunk, Ragged, Sequences

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """Work of a sequence of n tokens, in tokens: n + n^2 / crossover, at `crossover` tokens half of it attention."""

    crossover: float = math.inf

    def of(self, lengths: Int64) -> Float64:
        """float64[n] of lengths int64[n]."""
        return lengths + lengths.astype(np.float64) ** 2 / self.crossover


def cut(costs: Float64, target: float) -> int:
    """How many of the first sequences come closest to `target` together; at least one (Algorithm 1)."""
    sums = np.cumsum(costs)
    at = int(np.searchsorted(sums, target))
    if at == len(sums):
        return at
    below = sums[at - 1] if at else 0.0
    return max(at + int(sums[at] - target < target - below), 1)


def assign(costs: Float64, ranks: int) -> Int64:
    """A rank for each sequence, int64[n]: the costliest first, to the rank with the least work so far.

    Alike on all ranks: of equals the first sequence and the lowest rank come first.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    chosen = np.empty(len(costs), np.int64)
    for place in np.argsort(-costs, kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        chosen[place] = rank
        heapq.heappush(loads, (load + float(costs[place]), rank))
    return chosen


class BalancedBatches:
    """The batches of this rank, one per step; all ranks have equally many, of which some may be empty.

    `position` has the rows of each shard that were given out so far, for a checkpoint.
    """

    def __init__(
        self, world: World, chunks: Iterable[Chunk], columns: Sequence[str], tokens: str, target: float, *,
        cost: Cost | None = None, exchange: bool = True, position: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`target` is the cost that a rank draws per step; `tokens` names the column whose lengths are counted.

        `position` is that of a checkpoint, which `chunks` begin at. Without `exchange` a rank keeps what it drew.
        Raises InputError.
        """
        if not target > 0:
            raise InputError("target", f"is {target}", "a number of tokens above 0")
        if tokens not in columns:
            raise InputError("tokens", f"is {tokens!r}", f"one of the columns {', '.join(columns)}")
        self.world, self.columns, self.tokens = world, tuple(columns), tokens
        self.target, self.cost, self.exchange = target, cost or Cost(), exchange
        self.position = dict(position or {})
        self.loads: Float64 = np.zeros(world.ranks)  # cost of the last step per rank
        self._chunks, self._waiting = iter(chunks), deque[Chunk]()

    def __iter__(self) -> Iterator[Sequences]:
        """Until no rank has a sequence left. All ranks iterate together."""
        while True:
            drawn = self._draw()
            costs = self._costs(drawn)
            counts = self.world.gather(np.array([drawn.count], np.int64))[:, 0]
            if not counts.sum():
                return
            everyones = self._gather_costs(costs, counts)
            owners = np.repeat(np.arange(self.world.ranks), counts)
            if self.exchange:
                owners = assign(everyones, self.world.ranks)
            self.loads = np.bincount(owners, everyones, self.world.ranks)
            first = int(counts[: self.world.rank].sum())
            mine = owners[first : first + drawn.count]
            yield swap_sequences(self.world, drawn, mine) if self.exchange else drawn

    def _costs(self, sequences: Sequences) -> Float64:
        return self.cost.of(sequences.lengths(self.tokens))

    def _gather_costs(self, costs: Float64, counts: Int64) -> Float64:
        """Of all ranks' sequences in the order of ranks; sent as whole numbers of the same bits."""
        padded = np.zeros(int(counts.max()), np.float64)
        padded[: len(costs)] = costs
        told = self.world.gather(padded.view(np.int64)).view(np.float64)
        return np.concatenate([row[:count] for row, count in zip(told, counts, strict=True)])

    def _draw(self) -> Sequences:
        """The next sequences of this rank up to the target."""
        held = sum(self._costs(chunk.sequences).sum() for chunk in self._waiting)
        while held <= self.target and (chunk := next(self._chunks, None)):
            self._waiting.append(chunk)
            held += self._costs(chunk.sequences).sum()
        if not self._waiting:
            return Sequences.none(self.columns)
        left = cut(np.concatenate([self._costs(chunk.sequences) for chunk in self._waiting]), self.target)
        parts = []
        while left:
            shard, first, sequences = self._waiting.popleft()
            taken = min(left, sequences.count)
            parts.append(sequences.take(np.arange(taken)))
            self.position[shard] = first + taken
            left -= taken
            if taken < sequences.count:
                rest = sequences.take(np.arange(taken, sequences.count))
                self._waiting.appendleft(Chunk(shard, first + taken, rest))
        return Sequences.join(parts)


def swap_sequences(world: World, sequences: Sequences, owners: Int64) -> Sequences:
    """Send each sequence to its owner, int64[n]; what came, in the order of the ranks that had them."""
    names, ranks = list(sequences.columns), range(world.ranks)
    parts = [sequences.take(np.flatnonzero(owners == rank)) for rank in ranks]
    lengths = np.stack([np.concatenate([part.lengths(name) for part in parts]) for name in names], 1)
    values = [part.columns[name].values for part in parts for name in names]
    sent = np.array([[part.count, sum(len(each.values) for each in part.columns.values())] for part in parts])
    received = world.swap(sent, np.ones(world.ranks, np.int64), np.ones(world.ranks, np.int64))
    lengths = world.swap(lengths, sent[:, 0], received[:, 0])
    came = world.swap(np.concatenate(values), sent[:, 1], received[:, 1])
    found, row, at = [], 0, 0
    for count in received[:, 0]:
        columns = {}
        for name, each in zip(names, lengths[row : row + count].T, strict=True):
            offsets = np.concatenate(([0], np.cumsum(each)))
            columns[name] = Ragged(came[at : at + offsets[-1]], offsets)
            at += int(offsets[-1])
        found.append(Sequences(columns))
        row += int(count)
    return Sequences.join(found)
