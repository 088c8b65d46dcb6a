"""Whole requests in one process: prefill, beam search and decode of every level, without a hop between them.

xGR, section 7. The same functions as the steps of `ensembles.recommend_staged`; a batch of requests goes through
every pass of the generator together, and work arrays are reused from batch to batch (section 6.3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.beam import Beams, expand
from genrec.config import ModelConfig
from genrec.engine.base import Array, Passes
from genrec.kv import KV_TYPES, LINE
from genrec.reorder import reorder_in_place
from genrec.validity import Blocked, ValidityIndex


class Room:
    """Memory that is handed out in pieces, taken back as a whole, and grows to the largest use seen."""

    def __init__(self) -> None:
        self._memory, self._used, self._wanted = np.empty(0, np.uint8), 0, 0

    def clear(self) -> None:
        """Take everything back."""
        if self._wanted > len(self._memory):
            self._memory = np.empty(self._wanted, np.uint8)
        self._used = self._wanted = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array whose contents are left over; a fresh one where the memory is too small this once."""
        size = -(-int(np.prod(shape)) * dtype.itemsize // LINE) * LINE
        self._wanted += size
        if self._used + size > len(self._memory):
            return np.empty(shape, dtype)
        start, self._used = self._used, self._used + size
        return self._memory[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


class HostGenerator:
    """See `genrec.engine.base.Generator`; one per stream."""

    def __init__(
        self, passes: Passes, index: ValidityIndex, config: ModelConfig, width: int, kv_type: str
    ) -> None:
        self._passes, self._index, self._config = passes, index, config
        self._width, self._kv_type = width, KV_TYPES[kv_type]
        self._room = Room()
        self.most_blocked = max(index.node_count(level) for level in range(1, config.levels + 1))
        # Rows of a batch have so many beams at a level, unless items are excluded: then the rest is padding.
        self._counts = [min(width, index.node_count(level)) for level in range(1, config.levels + 1)]

    def answers(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], blocked: list[Blocked]
    ) -> list[Beams]:
        """tokens [B, S] padded right, lengths [B] >= 1 -> the last level's beams of every request.

        Raises InputError when a logit of a valid code is NaN or +inf.
        """
        c, (batch, span) = self._config, tokens.shape
        tensors = range(2 * c.num_hidden_layers)
        self._room.clear()
        logits = self._logits(batch, 1, 1)
        kv_shape = (batch, c.num_key_value_heads, span, c.head_dim)
        shared = [self._room.take(kv_shape, self._kv_type) for _ in tensors]
        past = [[self._past(batch) for _ in range(c.levels - 2)] for _ in tensors]
        self._passes.prefill(tokens, lengths, logits, shared)
        beams = self._expand(1, logits, [None] * batch, blocked)
        for level in range(2, c.levels + 1):
            count = self._counts[level - 2]
            codes = np.zeros((batch, count), np.int64)
            for row, found in enumerate(beams):
                codes[row, : len(found)] = found.prefixes % c.codebook_sizes[level - 2]
            views = [[_first(kept, batch, count) for kept in each] for each in past]
            for each in views:
                self._inherit(each[: level - 2], beams, level)
            logits = self._logits(batch, count, level)
            self._passes.decode(level, codes, lengths, shared, views, logits)
            beams = self._expand(level, logits, beams, blocked)
        return beams

    def _expand(
        self, level: int, logits: Array, beams: list[Beams] | list[None], blocked: list[Blocked]
    ) -> list[Beams]:
        return [
            expand(
                self._index,
                level,
                scores[: 1 if before is None else len(before)],
                before,
                self._width,
                not_these,
            )
            for scores, before, not_these in zip(logits, beams, blocked, strict=True)
        ]

    def _inherit(self, kept: list[Array], beams: list[Beams], level: int) -> None:
        """Let every beam's unshared KV [B, W, G, D] be its parent's, in place (section 5.1)."""
        for tensor in kept:
            batch, count = tensor.shape[:2]
            before = _first(tensor, batch, self._counts[level - 3])
            # From the last row on: where beams have become more, a row moves up into space that is done with.
            for row in range(batch - 1, -1, -1):
                if before.shape != tensor.shape and row:
                    tensor[row, : before.shape[1]] = before[row]
                reorder_in_place(tensor[row].reshape(count, -1), beams[row].parents)

    def _logits(self, batch: int, count: int, level: int) -> Array:
        shape = (batch, count, self._config.codebook_sizes[level - 1])
        return self._room.take(shape, np.dtype(np.float32))

    def _past(self, batch: int) -> Array:
        c = self._config
        return self._room.take((batch, self._counts[-1], c.num_key_value_heads, c.head_dim), self._kv_type)


def _first(tensor: Array, batch: int, count: int) -> Array:
    """The start of the memory of [B, W', G, D] as [B, W, G, D], W <= W'."""
    shape = (batch, count, *tensor.shape[2:])
    return tensor.reshape(-1)[: int(np.prod(shape))].reshape(shape)
