"""Users' entries of a model: what they are called, where they lie, and who makes their KV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from genrec.engine.interface import Array, UserName
from genrec.pool.keys import Words
from genrec.pool.pool import Pool
from genrec.pool.users import UserEntry, Wanted, Writing


class UserEntries(Protocol):
    """Users' entries of one model, a user's tokens being int32[S] or [S, n]. Equal ones find each other's."""

    @property
    def step(self) -> int:
        """Tokens from one boundary of an entry to the next."""

    @property
    def token_bytes(self) -> int:
        """Of KV of one token."""

    def names(self, secret: bytes, owner: int | None, tokens: Array) -> Words:
        """A key per boundary, of this model alone: see `genrec.pool.keys.user_words`."""

    def span(self, tokens: int) -> int:
        """Tokens that an entry of so many has room for."""

    def user_bytes(self, span: int) -> int:
        """Of an entry of `span` tokens."""

    def user(self, memory: Array, span: int) -> list[Array]:
        """uint8[user_bytes(span)] as 2N tensors [1, G, span, D]."""


class UserPasses(Protocol):
    """What makes the KV of such entries; one at a time."""

    @property
    def entries(self) -> UserEntries:
        """Of the same weights."""

    def keep(self, name: UserName, memory: Array, span: int) -> None:
        """A ranking is about to read this entry, uint8[user_bytes(span)]: what keeps such does so now."""

    def fill(self, tokens: Array, kv: Sequence[Array], past: int, end: int) -> None:
        """Compute tokens from `past` to `end` into 2N kv [1, G, span, D], which hold those before `past`."""


@contextmanager
def held(
    pool: Pool,
    entries: UserEntries,
    hashes: Words,
    tokens: int,
    owner: bytes,
    keep: bool,
    came_ns: int | None,
) -> Iterator[tuple[UserEntry | None, Writing | None]]:
    """What the pool has of a user of `tokens` tokens; room for all of them if that is less, and only to `keep`, and if
    nobody was forgotten since `came_ns`.

    Both stay in their places until this ends; what was written can be found then.
    """
    span = entries.span(tokens)
    wanted = Wanted(span, entries.user_bytes(span), owner, came_ns) if keep else None
    found, writing = pool.hold_user(hashes, entries.step, tokens, wanted)
    try:
        try:
            yield found, writing
        except BaseException:
            if writing:
                pool.abandon(writing)
            raise
        if writing:  # only now, as nothing else holds it in its place
            pool.commit(writing)
    finally:
        if found:
            pool.release(found)


def copy_past(entries: UserEntries, found: Sequence[Array], kv: Sequence[Array], tokens: int) -> None:
    """The first `tokens` of an entry into another.

    Zeros behind them, up to the next shape: memory is as others left it, and 0 times NaN is NaN.
    """
    end = entries.span(tokens)
    for whole, old in zip(kv, found, strict=True):
        whole[:, :, :tokens] = old[:, :, :tokens]
        whole[:, :, tokens:end] = 0
