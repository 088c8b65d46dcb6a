"""Prompts that `generate` has computed, left in the pool as users' entries for the ranking that follows.

Beyond the paper: where generator and ranker share the layers that make a user's KV, a history is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genrec.engine.interface import Array
from genrec.engine.load_ranker import kv_model, load_entry_layout
from genrec.kv.entries import EntryLayout
from genrec.models.config import ModelConfig
from genrec.pool.keys import owner_key, user_words
from genrec.pool.pool import Pool
from genrec.rank.kinds import DISCRIMINANT, ranker_of
from genrec.rank.options import OPTIONS, RankerConfig
from genrec.settings import Settings


class KeptPrompts:
    """Where they go."""

    def __init__(self, pool: Pool, layout: EntryLayout, model: str, lease_s: float) -> None:
        """They go after `lease_s` if no ranking uses them."""
        self._pool, self._layout, self._model, self._lease_s = pool, layout, model, lease_s

    @classmethod
    def of(cls, settings: Settings, config: ModelConfig) -> KeptPrompts | None:
        """None where there is no pool, or no ranker that reads the generator's KV."""
        if settings.pool is None or ranker_of(settings.artifact, settings.ranker) != DISCRIMINANT:
            return None
        if not RankerConfig.load(settings.artifact / "model" / OPTIONS).shared:
            return None
        layout, model = load_entry_layout(settings, config), kv_model(settings.artifact)
        return cls(Pool(settings.pool), layout, model, settings.lease_ms / 1e3)

    def keep(
        self, tokens: Array, lengths: Array, owners: Sequence[tuple[bool, int] | None], kv: Sequence[Array]
    ) -> None:
        """Of a batch: tokens int64[B, S], lengths [B], kv 2N tensors [B, G, S, D]; of rows that have an owner.

        A copy of the prompt's KV, once per prompt that is not there yet.
        """
        layout, pool, span = self._layout, self._pool, tokens.shape[1]
        for row, owner in enumerate(owners):
            if owner is None:
                continue
            user, mine = owner[1] if owner[0] else None, tokens[row, : lengths[row]].astype(np.int32)
            hashes = user_words(pool.secret, self._model, layout.name, user, mine, layout.config.levels)
            writing = pool.write_user(hashes, span, layout.user_bytes(span), owner_key(pool.secret, user))
            if writing:
                for place, tensor in zip(layout.user(writing.memory, span), kv, strict=True):
                    place[0] = tensor[row]
                pool.commit(writing, self._lease_s)
