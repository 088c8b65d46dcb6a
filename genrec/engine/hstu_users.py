"""Users' entries of an HSTU ranker, and their KV by its passes.

An entry is found by all that it was made of: items, ratings or waits, seconds since the first event, and features. It
holds 2N tensors float32[1, H, span, D]: k, v of layer 0, then of layer 1, ... `now` is no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genrec.engine.interface import Array, HstuPasses, UserName
from genrec.pool.keys import Words, user_words
from genrec.rank.hstu import FEATURE, HstuConfig
from genrec.rank.hstu_marks import user_marks
from genrec.settings import SPAN


@dataclass(frozen=True)
class HstuEntries:
    """See `genrec.engine.user_entry.UserEntries`: tokens int32[U, token_size]. `model` names the weights."""

    config: HstuConfig
    model: str

    @property
    def step(self) -> int:
        """An event may be the last that agrees."""
        return 1

    @property
    def token_bytes(self) -> int:
        """Of KV of one token."""
        return 2 * self.config.layers * self.config.hidden_size * np.dtype(np.float32).itemsize

    def names(self, secret: bytes, owner: int | None, tokens: Array) -> Words:
        """See `UserEntries.names`. Features see each other, so an entry with others of them agrees in nothing."""
        features = ",".join(map(str, tokens[tokens[:, FEATURE] > 0, FEATURE]))
        named = f"{self.model}:{features}"
        return user_words(secret, named, "hstu", owner, tokens.ravel(), self.config.token_size)

    def span(self, tokens: int) -> int:
        """See `UserEntries.span`. Equal shapes are faster in OpenVINO's own nodes."""
        return -(-tokens // SPAN) * SPAN

    def user_bytes(self, span: int) -> int:
        """See `UserEntries.user_bytes`."""
        return span * self.token_bytes

    def user(self, memory: Array, span: int) -> list[Array]:
        """See `UserEntries.user`."""
        c = self.config
        shape = (2 * c.layers, 1, c.heads, span, c.hidden_size // c.heads)
        return list(memory[: self.user_bytes(span)].view(np.float32).reshape(shape))


class HstuUsers:
    """See `genrec.engine.user_entry.UserPasses`."""

    def __init__(self, passes: HstuPasses, entries: HstuEntries) -> None:
        self.entries = entries
        self._passes, self._config = passes, entries.config
        self.nobody = entries.user(np.zeros(entries.token_bytes, np.uint8), 1)

    def keep(self, name: UserName, memory: Array, span: int) -> None:
        """See `UserPasses.keep`: it stays where it is."""
        self._passes.hold(memory)

    def fill(self, tokens: Array, kv: Sequence[Array], past: int, end: int) -> None:
        """See `UserPasses.fill`. A part may not end between features, which see each other: they are few."""
        if not past and end == len(tokens):
            self._whole(tokens, kv)
            return
        marks, new = user_marks(self._config, tokens[:end], past), end - past
        old = (
            [np.ascontiguousarray(each[:, :, : self.entries.span(past)]) for each in kv]
            if past
            else self.nobody
        )
        before = np.zeros((3, new, old[0].shape[2]), np.int64)
        before[:, :, :past] = marks[:, :, :past]
        made = [np.empty((*each.shape[:2], new, each.shape[3]), np.float32) for each in kv]
        own = np.ascontiguousarray(marks[:, :, past:])
        self._passes.user(self._config.read(tokens[past:end]), own, before, old, made)
        for whole, newest in zip(kv, made, strict=True):
            whole[:, :, past:end] = newest
            whole[:, :, end : self.entries.span(end)] = 0  # as in `copy_past`

    def _whole(self, tokens: Array, kv: Sequence[Array]) -> None:
        """All of a user's tokens. Equal shapes are faster, so what is padded is computed too, and seen by nobody."""
        span = kv[0].shape[2]
        given = np.zeros((span, self._config.token_size), np.int32)
        given[: len(tokens)] = tokens
        marks = user_marks(self._config, tokens, span=span)
        unseen = np.zeros((3, span, 1), np.int64)
        self._passes.user(self._config.read(given), marks, unseen, self.nobody, kv)
