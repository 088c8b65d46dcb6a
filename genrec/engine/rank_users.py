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
class RankEntries(EntryLayout):
    """See `genrec.engine.user_entry.UserEntries`: tokens int32[S]. `model` names the weights that KV comes from.

    Our operations take any shape equally well: a span is as the layout has it.
    """

    model: str

    @classmethod
    def of(cls, layout: EntryLayout, model: str) -> RankEntries:
        """Entries that lie so."""
        return cls(layout.config, layout.item_tokens, layout.kv_type, layout.step, model)

    def names(self, secret: bytes, owner: int | None, tokens: Array) -> Words:
        """See `UserEntries.names`."""
        return user_words(secret, self.model, self.name, owner, tokens, self.step)


class RankUsers:
    """See `genrec.engine.user_entry.UserPasses`."""

    def __init__(self, passes: RankPasses, layout: EntryLayout, model: str) -> None:
        self.entries = RankEntries.of(layout, model)
        self._passes, self._scratch = passes, Scratch()

    def keep(self, name: UserName, memory: Array, span: int) -> None:
        """See `UserPasses.keep`."""
        self._passes.keep(name, self.entries.whole(memory, span))

    def fill(self, tokens: Array, kv: Sequence[Array], past: int, end: int) -> None:
        """See `UserPasses.fill`."""
        c, span = self.entries.config, kv[0].shape[2]
        if not past and end == len(tokens):
            whole = np.zeros((1, span), np.int64)
            whole[0, :end] = tokens
            self._passes.entries(whole, kv)
            return
        given = tokens[None, past:end].astype(np.int64)
        shape = (1, c.num_key_value_heads, end - past, c.head_dim)
        self._scratch.clear()
        behind = [self._scratch.take(shape, self.entries.dtype) for _ in kv]
        if past:
            self._passes.extend(given, past, kv, behind)
        else:
            self._passes.entries(given, behind)
        room = self.entries.span(end)  # whose end is read too, by engines of OpenVINO's own nodes
        for whole, newest in zip(kv, behind, strict=True):
            whole[:, :, past:end] = newest
            whole[:, :, end:room] = 0
