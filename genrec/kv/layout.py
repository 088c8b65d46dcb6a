"""Where each tensor of a request lies in its arena slot.

A region of B rows with prompts padded to S tokens holds, in this order:
  first-level logits [B, T_1], shared k, v per layer [B, G, S, D], then per row
  unshared k, v per layer and earlier level [W, G, D] and later logits [W, T_max].
Sizes are linear in B, so a region of B slots always has room. Shared KV is one copy per request whatever W is
(xGR, section 5.1); the KV of the last decode step is used in that step only and is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.kv.arena import Region, Row
from genrec.models.config import ModelConfig

Count = TypeVar("Count", int, NDArray[np.int64])
LINE = 64  # bytes; tensors and entries start on cache lines
# NumPy has no bf16; its bits travel as uint16
KV_TYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


def aligned(size: Count) -> Count:
    """Bytes up to the end of a cache line; a number or int64[n]."""
    return -(-size // LINE) * LINE


@dataclass(frozen=True)
class Layout:
    """Sizes and places for one generator, beam width and KV type (`f32` or `bf16`)."""

    config: ModelConfig
    width: int
    kv_type: str

    @property
    def slot_bytes(self) -> int:
        """Bytes of one request of the largest prompt and beam width."""
        return (
            self._shared_start(1)
            + 2 * self.config.num_hidden_layers * self._shared_bytes(1, self.config.max_prompt)
            + self._unshared_bytes
        )

    def first_logits(self, region: Region) -> NDArray[np.float32]:
        """float32 [B, 1, T_1], the whole batch's."""
        size = self.config.codebook_sizes[0]
        return region.memory[: 4 * region.rows * size].view(np.float32).reshape(region.rows, 1, size)

    def shared(self, region: Region | Row, tensor: int) -> NDArray[np.generic]:
        """KV tensor number `tensor` (k, v of layer 0, then of layer 1, ...): [B, G, S, D]."""
        c = self.config
        start = self._shared_start(region.rows) + tensor * self._shared_bytes(region.rows, region.span)
        shape = (region.rows, c.num_key_value_heads, region.span, c.head_dim)
        return self._cut(region.memory, start, shape)

    def row_shared(self, row: Row, tensor: int) -> NDArray[np.generic]:
        """The same for one row: [1, G, S, D]."""
        return self.shared(row, tensor)[row.row : row.row + 1]

    def unshared(self, row: Row, tensor: int, earlier: int, width: int) -> NDArray[np.generic]:
        """Unshared KV of the token at level `earlier` + 1: [1, W, G, D]."""
        c = self.config
        start = (
            self._unshared_start(row) + (tensor * max(c.levels - 2, 0) + earlier) * self._unshared_token_bytes
        )
        return self._cut(row.memory, start, (1, width, c.num_key_value_heads, c.head_dim))

    def logits(self, row: Row, level: int, width: int) -> NDArray[np.float32]:
        """Logits of `level` for the row's beams: float32 [W, T_level]; one beam at level 1."""
        size = self.config.codebook_sizes[level - 1]
        if level == 1:
            return (
                row.memory[: 4 * row.rows * size]
                .view(np.float32)
                .reshape(row.rows, size)[row.row : row.row + 1]
            )
        start = self._unshared_start(row) + self._unshared_bytes - self._logit_bytes
        return row.memory[start : start + 4 * width * size].view(np.float32).reshape(width, size)

    def _cut(self, memory: NDArray[np.uint8], start: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
        dtype = KV_TYPES[self.kv_type]
        return memory[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)

    def _shared_start(self, rows: int) -> int:
        return rows * aligned(4 * self.config.codebook_sizes[0])

    def _shared_bytes(self, rows: int, span: int) -> int:
        c = self.config
        return rows * aligned(c.num_key_value_heads * span * c.head_dim * KV_TYPES[self.kv_type].itemsize)

    @property
    def _unshared_token_bytes(self) -> int:
        c = self.config
        return aligned(self.width * c.num_key_value_heads * c.head_dim * KV_TYPES[self.kv_type].itemsize)

    @property
    def _logit_bytes(self) -> int:
        return aligned(4 * self.width * max(self.config.codebook_sizes))

    @property
    def _unshared_bytes(self) -> int:
        c = self.config
        return 2 * c.num_hidden_layers * max(c.levels - 2, 0) * self._unshared_token_bytes + self._logit_bytes

    def _unshared_start(self, row: Row) -> int:
        c = self.config
        shared = 2 * c.num_hidden_layers * self._shared_bytes(row.rows, row.span)
        return self._shared_start(row.rows) + shared + row.row * self._unshared_bytes
