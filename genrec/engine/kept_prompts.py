"""Prompts that `generate` and `prefill_draft` have computed, left in the pool as users' entries.

The next request of the user, whose history has grown, computes what is new. So does the ranking that follows where
generator and ranker share the layers that make a user's KV: a history is computed once. Beyond the papers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

import numpy as np

from genrec.artifact import load_config
from genrec.engine.interface import Array, BringPrompt, Past
from genrec.engine.load_ranker import (
    GENERATOR,
    kv_model,
    load_entry_layout,
    load_prompt_layout,
    weights_name,
)
from genrec.kv.entries import EntryLayout
from genrec.models.config import ModelConfig
from genrec.pool.counts import count_pool
from genrec.pool.keys import Words, owner_key, user_words
from genrec.pool.owner import Owner
from genrec.pool.pool import Pool
from genrec.pool.rehearsal import borrowed
from genrec.pool.users import UserEntry
from genrec.rank.kinds import DISCRIMINANT, ranker_of
from genrec.rank.options import RankerConfig
from genrec.settings import Settings
from genrec.target import target_of

# Operations of a prompt from which on its KV is worth a place: half a millisecond to a millisecond. What is smaller is
# computed as fast as it is looked for and kept.
WORTH = 2e8


class Visit(NamedTuple):
    """One request of a user, with the pool entry found for it."""

    owner: Owner
    found: UserEntry | None  # what the pool has of its prompt, held until `release`


class KeptPrompts:
    """Where they go, and what is found of them."""

    def __init__(
        self, pool: Pool, layout: EntryLayout, model: str, lease_s: float, ranked: bool, resumes: bool
    ) -> None:
        """`model` names the weights. Where they are `ranked`, prompts that nobody names stay for `lease_s`, and short
        ones of who is named too, unless a ranking uses them.
        """  # fmt: skip
        self._pool, self._layout, self._model = pool, layout, model
        self._lease_s, self._ranked, self._resumes = lease_s, ranked, resumes

    @classmethod
    def of(cls, settings: Settings, config: ModelConfig, resumes: bool) -> KeptPrompts | None:
        """None where there is no pool or nothing reads the entries. `resumes`: the caller can start from one."""
        if settings.pool is None:
            return None
        if _ranked(settings):
            layout, model = load_entry_layout(settings, config), kv_model(settings)
        elif resumes and are_worth_it(config, config.max_prompt):
            layout, model = load_prompt_layout(settings, config), weights_name(settings, GENERATOR)
        else:
            return None
        return cls(Pool(settings.pool), layout, model, settings.lease_ms / 1e3, _ranked(settings), resumes)

    def look(self) -> None:
        """Count what the pool holds."""
        count_pool(self._pool)

    def takes(self, owner: Owner, tokens: int) -> bool:
        """Whether a prompt of so many tokens is kept for its user, and looked for."""
        return owner.named and are_worth_it(self._layout.config, tokens)

    def keeps(self, owner: Owner, tokens: int) -> bool:
        """Whether `keep` keeps a prompt of so many: for its user, or for a ranking."""
        return self._ranked or self.takes(owner, tokens)

    def visit(self, owner: Owner, tokens: Array) -> Visit:
        """Of a request with the prompt int32[S]; until `release`."""
        return Visit(owner, self._find(owner, tokens) if self._resumes else None)

    def _find(self, owner: Owner, tokens: Array) -> UserEntry | None:
        """What the pool has of a named user's prompt; None if less than half of it."""
        if not self.takes(owner, len(tokens)):
            return None
        found = self._pool.find_user(self._hashes(owner, tokens), self._layout.config.levels)
        if found and 2 * min(found.tokens, len(tokens) - 1) < len(tokens):
            self._pool.release(found)
            return None
        return found

    def past(self, visit: Visit, length: int) -> Past:
        """Of a prompt of `length` tokens. The last is computed for its logits, unless they are there."""
        found, layout = visit.found, self._layout
        if not found:
            return self.example(0)
        kv, logits = layout.user(found.memory, found.span), layout.logits(found.memory, found.span)
        if len(logits) and found.tokens == length == logits[0]:
            return Past(length, kv, logits[1:])
        return Past(min(found.tokens, length - 1), kv)

    def release(self, visit: Visit) -> None:
        """Nobody reads what it found any more; once for every visit."""
        if visit.found:
            self._pool.release(visit.found)

    def keep(
        self, tokens: Array, lengths: Array, visits: Sequence[Visit | None], row: int, bring: BringPrompt,
        logits: Array | None = None,
    ) -> None:  # fmt: skip
        """Of a row of a batch, if it has an owner: tokens int64[B, S], lengths [B]; the others as `ShowPrompt` has.

        A copy of the prompt's KV, once per prompt that is not there yet.
        """
        visit, mine = visits[row], tokens[row, : lengths[row]].astype(np.int32)
        if visit is None or not self.keeps(visit.owner, len(mine)):
            return
        with self._entry(visit, mine, logits if self.takes(visit.owner, len(mine)) else None) as entry:
            if entry is not None:
                bring(entry)

    def keep_behind(self, visit: Visit, tokens: Array, past: Past, new: Sequence[Array]) -> None:
        """Of a prompt int32[S]: what it went on behind, and 2N tensors [1, G, Q, D] that begin with the rest."""
        start, end = past.tokens, len(tokens)
        with self._entry(visit, tokens) as entry:
            for place, old, newest in () if entry is None else zip(entry, past.kv, new, strict=True):
                place[:, :start] = old[0, :, :start]
                place[:, start:end] = newest[0, :, : end - start]
                place[:, end:] = 0  # memory is as others left it, and 0 times NaN is NaN

    @contextmanager
    def _entry(self, visit: Visit, tokens: Array, logits: Array | None = None) -> Iterator[Array | None]:
        """Where the KV of a prompt int32[S] goes, [2N, G, span, D]: None if it is there already, there is no room, or
        somebody was forgotten since the request came: perhaps it was he. Its logits float32[T_1] go behind it.

        It can be found when this ends well.
        """
        layout, pool, owner = self._layout, self._pool, visit.owner
        span = layout.span(len(tokens))
        hashes, whose = self._hashes(owner, tokens), owner_key(pool.secret, owner.whose)
        came_ns, lives_s = (owner.came_ns, inf) if owner.named else (None, self._lease_s)
        size = layout.user_bytes(span) + (0 if logits is None else layout.logits_bytes)
        writing = pool.write_user(hashes, span, size, whose, came_ns, lives_s)
        if not writing:
            yield None
            return
        if logits is not None:
            place = layout.logits(writing.memory, span)
            place[0], place[1:] = len(tokens), logits
        try:
            yield layout.whole(writing.memory, span)[0]
        except BaseException:
            pool.abandon(writing)
            raise
        pool.commit(writing, inf if self.takes(owner, len(tokens)) else self._lease_s)

    def rehearse(self, row: int, bring: BringPrompt, logits: Array | None = None) -> None:
        """See `Executor.answers`: the way of a prompt's KV to the pool, whose memory is slow when it is first used."""
        span = self._layout.span(1)
        with borrowed(self._pool, span, self._layout.user_bytes(span)) as memory:
            if memory is not None:
                bring(self._layout.whole(memory, span)[0])

    def example(self, tokens: int = 1) -> Past:
        """One to rehearse with, or none."""
        layout, span = self._layout, self._layout.span(1)
        return Past(tokens, layout.user(np.zeros(layout.user_bytes(span), np.uint8), span))

    def _hashes(self, owner: Owner, tokens: Array) -> Words:
        secret, layout = self._pool.secret, self._layout
        return user_words(secret, self._model, layout.name, owner.whose, tokens, layout.config.levels)


def are_worth_it(config: ModelConfig, tokens: int) -> bool:
    """Whether so many tokens of a prompt are work enough."""
    heads, size = config.num_attention_heads, config.head_dim
    attention = 2 * config.hidden_size * size * (heads + config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    return 2 * tokens * config.num_hidden_layers * layer >= WORTH


def keeps_prompts(settings: Settings) -> bool:
    """Whether `recommend` and `recommend_draft` have use for a pool where nobody ranks."""
    target, config = target_of(settings.target), load_config(settings.artifact, settings.target)
    reads = bool(target.engine) and not target.executor
    return reads and settings.pool_user_mb > 0 and are_worth_it(config, config.max_prompt)


def _ranked(settings: Settings) -> bool:
    """Whether a ranker reads KV of the generator's prompts: it has its layers, and histories are the same tokens."""
    if ranker_of(settings.artifact, settings.ranker) != DISCRIMINANT:
        return False
    options = RankerConfig.of(settings.artifact, settings.target)
    return options.shared and options.history == "codes"
