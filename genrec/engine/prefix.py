"""Which KV a ranking begins with, by what a pool has of its user and its items (BAT, section 5.3)."""

from __future__ import annotations

from genrec.engine.interface import Array
from genrec.kv.entries import EntryLayout
from genrec.pool.keys import item_words, owner_key, user_words, words
from genrec.pool.look import look
from genrec.pool.pool import Pool
from genrec.rank.choice import Choice, Fixed, Request, choice, policy
from genrec.rank.options import ORDERS


class PrefixChooser:
    """A policy at work on the entries of one model. Without a pool only a fixed one finds something to choose."""

    def __init__(self, name: str, layout: EntryLayout, model: str, pool: Pool | None) -> None:
        """`name` of `genrec.rank.choice.POLICIES`, `model` as in the entries' keys. Raises InputError."""
        self._order = name if name in ORDERS else "whole"
        self._layout, self._model, self._pool = layout, model, pool
        self.policy = None
        if pool and not isinstance(rule := policy(name, pool.hotness), Fixed):
            # It asks the pool for room by its own measure
            self.policy = pool.rule = rule

    def choose(self, owner: int | None, tokens: Array, candidates: Array, now: int) -> Choice:
        """What to do with a history int32[S] and candidates int32[C, t] at `now` (ns)."""
        pool, layout, step = self._pool, self._layout, self._layout.step
        many, each = candidates.shape
        asked = Request(len(tokens), many, each)
        if pool is None or self.policy is None or not len(tokens):
            return choice(asked, self._order)
        hashes = user_words(pool.secret, self._model, layout.name, owner, tokens, step)
        cached = look(pool, hashes, step, item_words(self._model, layout.name, candidates))
        asked = Request(len(tokens), many, each, *cached)
        if owner is None:  # who is not named cannot be seen to return
            return choice(asked, min(("item", "user"), key=asked.cost))
        return self.policy.choose(
            asked, words([owner_key(pool.secret, owner)])[0], now,
            lambda: pool.room(hashes, layout.user_bytes(layout.span(len(tokens)))),
        )  # fmt: skip
