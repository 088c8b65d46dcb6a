"""A user's KV for a ranking: from the pool, from what is half made ahead of it, or computed now.

The same for every ranker; an answer never depends on where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from genrec.engine.interface import Array, UserName
from genrec.engine.pre_infer import PartByPart
from genrec.engine.user_entry import UserPasses, copy_past, held
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from genrec.pool.rehearsal import borrowed
from genrec.pool.users import UserEntry, Writing
from genrec.search.scratch import Scratch


class UserKv(NamedTuple):
    """2N tensors [1, G, span, D], of how many tokens they were there, and bytes that were copied."""

    kv: list[Array]
    memory: Array  # uint8, in which they lie
    reused: int
    copied: int
    name: UserName | None = None  # where there is a pool


class Users:
    """Those of one stream. Without a pool everything is computed."""

    def __init__(self, passes: UserPasses, pool: Pool | None = None, ahead: PartByPart | None = None) -> None:
        """`ahead`: pre-inferences by the same passes, if this process makes any."""
        self._passes, self._entries, self._pool, self._ahead = passes, passes.entries, pool, ahead
        self._scratch, self._lent = Scratch(), 0

    def rehearse(self) -> None:
        """The way of an entry from the pool to a device, whose first one is slow."""
        if self._pool is None:
            return
        span = self._entries.span(1)
        with borrowed(self._pool, span, self._entries.user_bytes(span)) as memory:
            if memory is not None:
                memory[:] = 0
                self._passes.keep(UserName(b"", self._pool.forgot_ns), memory, span)

    @contextmanager
    def kv_of(
        self, owner: int | None, tokens: Array, keep: bool, came_ns: int | None = None
    ) -> Iterator[UserKv]:
        """Of a user's tokens int32[S] or [S, n]; new KV is kept or not. An entry of the pool stays where it is until
        this ends, and so does what this lends; meanwhile others may be asked for.

        `came_ns`: when the request came, on the monotonic clock. If anybody was forgotten since, it was perhaps he, and
        nothing is kept.
        """
        if not self._lent:
            self._scratch.clear()
        self._lent += 1
        try:
            with self._kv_of(owner, tokens, keep, came_ns) as found:
                yield found
        finally:
            self._lent -= 1

    @contextmanager
    def _kv_of(self, owner: int | None, tokens: Array, keep: bool, came_ns: int | None) -> Iterator[UserKv]:
        pool, entries = self._pool, self._entries
        if pool is None:
            yield self._computed(tokens, None)
            return
        names = entries.names(pool.secret, owner, tokens)
        computed = self._ahead.take_over(names) if self._ahead else 0
        whose = owner_key(pool.secret, owner)
        with held(pool, entries, names, len(tokens), whose, keep, came_ns) as (found, writing):
            if found and found.tokens == len(tokens):
                kv = entries.user(found.memory, found.span)
                given = UserKv(kv, found.memory, len(tokens) - computed, 0)
            elif found:
                given = self._extended(found, tokens, writing)
            else:
                given = self._computed(tokens, writing)
            key = names[-1].tobytes() if keep or found else b""
            yield given._replace(name=UserName.of(key, came_ns, pool.forgot_ns))

    def _computed(self, tokens: Array, writing: Writing | None) -> UserKv:
        kv, memory = self._place(len(tokens), writing)
        self._passes.fill(tokens, kv, 0, len(tokens))
        return UserKv(kv, memory, 0, 0)

    def _extended(self, found: UserEntry, tokens: Array, writing: Writing | None) -> UserKv:
        """The entry that agrees so far, with the newest tokens behind it."""
        (kv, memory), past = self._place(len(tokens), writing), found.tokens
        copy_past(self._entries, self._entries.user(found.memory, found.span), kv, past)
        self._passes.fill(tokens, kv, past, len(tokens))
        return UserKv(kv, memory, past, past * self._entries.token_bytes)

    def _place(self, tokens: int, writing: Writing | None) -> tuple[list[Array], Array]:
        span = self._entries.span(tokens)
        size = self._entries.user_bytes(span)
        memory = writing.memory if writing else self._scratch.take((size,), np.dtype(np.uint8))
        return self._entries.user(memory, span), memory
