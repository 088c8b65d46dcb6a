"""Whole requests in one process: prefill, beam search and decode of every level, without a hop between them.

xGR, section 7. The same functions as the steps of `ensembles.recommend_staged`; a batch of requests goes through
every pass of the generator together, and work arrays are reused from batch to batch (section 6.3).
"""

from __future__ import annotations

import numpy as np

from genrec.beam import Beams, expand
from genrec.config import ModelConfig
from genrec.engine.base import Array, Constraint, Passes
from genrec.kv import KV_TYPES
from genrec.reorder import reorder_in_place
from genrec.room import Room
from genrec.validity import ValidityIndex


class HostGenerator:
    """See `genrec.engine.base.Generator`; one per stream."""

    most_blocked = np.iinfo(np.int32).max

    def __init__(self, passes: Passes, config: ModelConfig, width: int, kv_type: str) -> None:
        self._passes, self._config = passes, config
        self._width, self._kv_type = width, KV_TYPES[kv_type]
        self._room = Room()

    def answers(self, tokens: Array, lengths: Array, constraints: list[Constraint]) -> list[Beams]:
        """See `Generator.answers`."""
        c, (batch, span) = self._config, tokens.shape
        counts = self._counts({constraint.valid for constraint in constraints})
        tensors = range(2 * c.num_hidden_layers)
        self._room.clear()
        logits = self._logits(batch, 1, 1)
        kv_shape = (batch, c.num_key_value_heads, span, c.head_dim)
        shared = [self._room.take(kv_shape, self._kv_type) for _ in tensors]
        past_shape = (batch, counts[-1], c.num_key_value_heads, c.head_dim)
        past = [[self._room.take(past_shape, self._kv_type) for _ in range(c.levels - 2)] for _ in tensors]
        self._passes.prefill(tokens, lengths, logits, shared)
        beams = self._expand(1, logits, [None] * batch, constraints)
        for level in range(2, c.levels + 1):
            count = counts[level - 2]
            codes = self._rows([found.prefixes for found in beams], count)
            np.remainder(codes, c.codebook_sizes[level - 2], out=codes)
            views = [[_first(kept, batch, count) for kept in each] for each in past]
            if level > 2:
                parents = self._rows([found.parents for found in beams], count)
                for each in views:
                    _inherit(each[: level - 2], parents, counts[level - 3])
            logits = self._logits(batch, count, level)
            self._passes.decode(level, codes, lengths, shared, views, logits)
            beams = self._expand(level, logits, beams, constraints)
        return beams

    def _counts(self, indices: set[ValidityIndex]) -> list[int]:
        """Beams of a row at every level, unless items are excluded or a version has fewer: then the rest is padding."""
        levels = range(1, self._config.levels + 1)
        return [min(self._width, max(index.node_count(level) for index in indices)) for level in levels]

    def _expand(
        self,
        level: int,
        logits: Array,
        beams: list[Beams] | list[None],
        constraints: list[Constraint],
    ) -> list[Beams]:
        last = level == self._config.levels  # the answer outlives the room
        return [
            expand(index, level, scores[: 1 if before is None else len(before)], before, self._width, blocked,
                   room=None if last else self._room)
            for scores, before, (index, blocked) in zip(logits, beams, constraints, strict=True)
        ]  # fmt: skip

    def _rows(self, values: list[Array], count: int) -> Array:
        """int64[B, W] of a row of up to W values each. Padding repeats the last, so that no pass ever reads what was
        left over; 0 where there is none.
        """  # fmt: skip
        out = self._room.take((len(values), count), np.dtype(np.int64))
        for row, found in zip(out, values, strict=True):
            row[: len(found)] = found
            row[len(found) :] = found[-1] if len(found) else 0
        return out

    def _logits(self, batch: int, count: int, level: int) -> Array:
        shape = (batch, count, self._config.codebook_sizes[level - 1])
        return self._room.take(shape, np.dtype(np.float32))


def _inherit(kept: list[Array], parents: Array, before: int) -> None:
    """Let every beam's unshared KV [B, W, G, D] be its parent's, parents [B, W] of `before` beams, in place
    (section 5.1).
    """  # fmt: skip
    for tensor in kept:
        batch, count = tensor.shape[:2]
        was = _first(tensor, batch, before)
        # From the last row on: where beams have become more, a row moves up into space that is done with.
        for row in range(batch - 1, -1, -1):
            if row and before != count:
                tensor[row, :before] = was[row]
            reorder_in_place(tensor[row].reshape(count, -1), parents[row])


def _first(tensor: Array, batch: int, count: int) -> Array:
    """The start of the memory of [B, W', G, D] as [B, W, G, D], W <= W'."""
    shape = (batch, count, *tensor.shape[2:])
    return tensor.reshape(-1)[: int(np.prod(shape))].reshape(shape)
