"""Where each tensor lies in the entries of a KV pool (BAT, section 5.1).

A user's entry of S tokens is [1, 2N, G, S, D]: k, v of layer 0, then of layer 1, ... An item's entry is a row of one
table [M, 2N, G, t, D].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.kv.layout import KV_TYPES
from genrec.models.config import ModelConfig

Array = NDArray[Any]
EVEN = 8  # tokens


@dataclass(frozen=True)
class EntryLayout:
    """Sizes and places for one ranker: `item_tokens` tokens of a candidate, `step` of an item of a history."""

    config: ModelConfig
    item_tokens: int
    kv_type: str
    step: int

    @cached_property
    def name(self) -> str:
        """What must be equal for an entry to be read: a part of its key."""
        c = self.config
        shape = (c.num_hidden_layers, c.num_key_value_heads, c.head_dim, self.item_tokens)
        return f"{self.kv_type}:{'x'.join(map(str, shape))}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of KV, in NumPy's terms."""
        return KV_TYPES[self.kv_type]

    @property
    def token_bytes(self) -> int:
        """Of KV of one token."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * self.dtype.itemsize

    @property
    def item_bytes(self) -> int:
        """Of a row of the table."""
        return self.item_tokens * self.token_bytes

    def span(self, tokens: int) -> int:
        """Tokens that a user's entry of so many has room for: whole cache lines."""
        return -(-tokens // EVEN) * EVEN

    def user_bytes(self, span: int) -> int:
        """Of a user's entry of `span` tokens."""
        return span * self.token_bytes

    def whole(self, memory: Array, span: int) -> Array:
        """uint8[user_bytes(span)] as a user's entry [1, 2N, G, span, D]."""
        c = self.config
        shape = (1, 2 * c.num_hidden_layers, c.num_key_value_heads, span, c.head_dim)
        return memory[: self.user_bytes(span)].view(self.dtype).reshape(shape)

    def user(self, memory: Array, span: int) -> list[Array]:
        """The same as 2N tensors [1, G, span, D]."""
        whole = self.whole(memory, span)
        return [whole[:, n] for n in range(whole.shape[1])]

    @property
    def logits_bytes(self) -> int:
        """Of what `logits` gives."""
        return (1 + self.config.codebook_sizes[0]) * np.dtype(np.float32).itemsize

    def logits(self, memory: Array, span: int) -> Array:
        """float32[1 + T_1] behind a prompt's KV: how many tokens it has, and the logits of the first level. [0] of an
        entry that has none.
        """  # fmt: skip
        found = memory[self.user_bytes(span) :].view(np.float32)
        return found if found.nbytes == self.logits_bytes else found[:0]

    def items(self, memory: Array) -> Array:
        """uint8[M * item_bytes] as the table [M, 2N, G, t, D]."""
        c = self.config
        shape = (-1, 2 * c.num_hidden_layers, c.num_key_value_heads, self.item_tokens, c.head_dim)
        return memory.view(self.dtype).reshape(shape)
