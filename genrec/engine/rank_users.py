"""Users' entries of a ranker over the generator's layers, and their KV by its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genrec.engine.interface import Array, RankPasses, UserName
from genrec.kv.entries import EntryLayout
from genrec.pool.keys import Words, user_words
from genrec.search.scratch import Scratch


@dataclass(frozen=True)
class RankEntries:
    """See `genrec.engine.user_entry.UserEntries`: tokens int32[S]. `model` names the weights that KV comes from."""

    layout: EntryLayout
    model: str

    @property
    def step(self) -> int:
        """Tokens of an item."""
        return self.layout.step

    @property
    def token_bytes(self) -> int:
        """Of KV of one token."""
        return self.layout.token_bytes

    def names(self, secret: bytes, owner: int | None, tokens: Array) -> Words:
        """See `UserEntries.names`."""
        return user_words(secret, self.model, self.layout.name, owner, tokens, self.step)

    def span(self, tokens: int) -> int:
        """See `UserEntries.span`. Our operations take any shape equally well."""
        return self.layout.span(tokens)

    def user_bytes(self, span: int) -> int:
        """See `UserEntries.user_bytes`."""
        return self.layout.user_bytes(span)

    def user(self, memory: Array, span: int) -> list[Array]:
        """See `UserEntries.user`."""
        return self.layout.user(memory, span)


class RankUsers:
    """See `genrec.engine.user_entry.UserPasses`."""

    def __init__(self, passes: RankPasses, layout: EntryLayout, model: str) -> None:
        self.entries = RankEntries(layout, model)
        self._passes, self._layout, self._scratch = passes, layout, Scratch()

    def keep(self, name: UserName, memory: Array, span: int) -> None:
        """See `UserPasses.keep`."""
        self._passes.keep(name, self._layout.whole(memory, span))

    def fill(self, tokens: Array, kv: Sequence[Array], past: int, end: int) -> None:
        """See `UserPasses.fill`."""
        c, span = self._layout.config, kv[0].shape[2]
        if not past and end == len(tokens):
            whole = np.zeros((1, span), np.int64)
            whole[0, :end] = tokens
            self._passes.entries(whole, kv)
            return
        given = tokens[None, past:end].astype(np.int64)
        shape = (1, c.num_key_value_heads, end - past, c.head_dim)
        self._scratch.clear()
        behind = [self._scratch.take(shape, self._layout.dtype) for _ in kv]
        if past:
            self._passes.extend(given, past, kv, behind)
        else:
            self._passes.entries(given, behind)
        room = self._layout.span(end)  # whose end is read too, by engines of OpenVINO's own nodes
        for whole, newest in zip(kv, behind, strict=True):
            whole[:, :, past:end] = newest
            whole[:, :, end:room] = 0
