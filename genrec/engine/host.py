"""Whole requests in one process: prefill, beam search and decode of every level, without a hop between them.

xGR, section 7. The same functions as the steps of `ensembles.recommend_staged`; a batch of requests goes through
every pass of the generator together, and work arrays are reused from batch to batch (section 6.3). A pass has only
the beams that it can tell apart (`genrec.undecided`).
"""

from __future__ import annotations

import numpy as np

from genrec.beam import Beams, expand
from genrec.config import ModelConfig
from genrec.engine.base import Array, Constraint, Passes
from genrec.kv import KV_TYPES
from genrec.reorder import reorder_in_place
from genrec.room import Room
from genrec.undecided import Int64, pass_size, rows_of_parents, undecided

_INT64 = np.dtype(np.int64)


class HostGenerator:
    """See `genrec.engine.base.Generator`; one per stream."""

    most_blocked = np.iinfo(np.int32).max

    def __init__(self, passes: Passes, config: ModelConfig, width: int, kv_type: str) -> None:
        self._passes, self._config = passes, config
        self._width, self._kv_type = width, KV_TYPES[kv_type]
        self._room = Room()

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], every_beam: bool = False
    ) -> list[Beams]:
        """See `Generator.answers`."""
        c, (batch, span) = self._config, tokens.shape
        tensors = range(2 * c.num_hidden_layers)
        self._room.clear()
        logits = self._logits(batch, 1, 1)
        kv_shape = (batch, c.num_key_value_heads, span, c.head_dim)
        shared = [self._room.take(kv_shape, self._kv_type) for _ in tensors]
        past_shape = (batch, self._width, c.num_key_value_heads, c.head_dim)
        past = [[self._room.take(past_shape, self._kv_type) for _ in range(c.levels - 2)] for _ in tensors]
        self._passes.prefill(tokens, lengths, logits, shared)
        beams = self._expand(1, logits, [None] * batch, [None] * batch, constraints)
        asked: list[Int64] = []
        count = 1
        for level in range(2, c.levels + 1):
            former, before = asked, count
            asked = self._asked(level - 1, beams, constraints, every_beam)
            count = pass_size(max(len(places) for places in asked), self._width)
            logits = self._logits(batch, count, level)
            if count:
                views = [[_first(kept, batch, count) for kept in each] for each in past]
                if level > 2:
                    parents = self._parents(beams, asked, former, count)
                    for each in past:
                        _inherit(each[: level - 2], parents, before)
                self._passes.decode(
                    level, self._codes(level, beams, asked, count), lengths, shared, views, logits
                )
            beams = self._expand(level, logits, beams, asked, constraints)
        return beams

    def _asked(
        self, level: int, beams: list[Beams], constraints: list[Constraint], every_beam: bool
    ) -> list[Int64]:
        """Of every request, the places of the beams of `level` that the next pass scores."""
        if every_beam:
            return [np.arange(len(found)) for found in beams]
        pairs = zip(beams, constraints, strict=True)
        return [undecided(index, level, found.nodes, self._room) for found, (index, _) in pairs]

    def _expand(
        self,
        level: int,
        logits: Array,
        beams: list[Beams] | list[None],
        asked: list[Int64] | list[None],
        constraints: list[Constraint],
    ) -> list[Beams]:
        last = level == self._config.levels  # the answer outlives the room
        return [
            expand(index, level, scores[: 1 if places is None else len(places)], before, self._width, blocked,
                   room=None if last else self._room, asked=places)
            for scores, before, places, (index, blocked) in zip(logits, beams, asked, constraints, strict=True)
        ]  # fmt: skip

    def _codes(self, level: int, beams: list[Beams], asked: list[Int64], count: int) -> Array:
        """int64[B, W], the last code of every beam that the pass of `level` scores."""
        prefixes = [
            np.take(found.prefixes, places, out=self._room.take(places.shape, _INT64), mode="clip")
            for found, places in zip(beams, asked, strict=True)
        ]
        codes = self._rows(prefixes, count)
        return np.remainder(codes, self._config.codebook_sizes[level - 2], out=codes)

    def _parents(self, beams: list[Beams], asked: list[Int64], former: list[Int64], count: int) -> Array:
        """int64[B, W], rows of the pass before."""
        rows = [
            rows_of_parents(found.parents, places, earlier, self._room)
            for found, places, earlier in zip(beams, asked, former, strict=True)
        ]
        return self._rows(rows, count)

    def _rows(self, values: list[Array], count: int) -> Array:
        """int64[B, W] of a row of up to W values each. Padding repeats the last, so that no pass ever reads what was
        left over; 0 where there is none.
        """  # fmt: skip
        out = self._room.take((len(values), count), _INT64)
        for row, found in zip(out, values, strict=True):
            row[: len(found)] = found
            row[len(found) :] = found[-1] if len(found) else 0
        return out

    def _logits(self, batch: int, count: int, level: int) -> Array:
        shape = (batch, count, self._config.codebook_sizes[level - 1])
        return self._room.take(shape, np.dtype(np.float32))


def _inherit(kept: list[Array], parents: Array, before: int) -> None:
    """Let every beam's unshared KV be its parent's, in place (section 5.1).

    kept [B, W', G, D] holds [B, before, G, D] at its start, then [B, W, G, D]; parents [B, W].
    """
    batch, count = parents.shape
    wide = max(before, count)
    # Where beams have become more, a row moves up into space that is done with, the last one first.
    rows = range(batch - 1, -1, -1) if before < count else range(batch)
    for tensor in kept:
        was, now, both = (_first(tensor, batch, beams) for beams in (before, count, wide))
        for row in rows:
            if row and before < count:
                now[row, :before] = was[row]
            reorder_in_place(both[row].reshape(wide, -1), parents[row])
            if row and before > count:
                now[row] = was[row, :count]


def _first(tensor: Array, batch: int, count: int) -> Array:
    """The start of the memory of [B, W', G, D] as [B, W, G, D], W <= W'."""
    shape = (batch, count, *tensor.shape[2:])
    return tensor.reshape(-1)[: int(np.prod(shape))].reshape(shape)
