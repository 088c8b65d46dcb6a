"""Which KV a ranking begins with: the user's, the items', or both (BAT, section 5.3)."""

from __future__ import annotations

import time

import numpy as np

from genrec.artifact import load_config
from genrec.engine.load_ranker import chosen_prefix, kv_model, load_entry_layout
from genrec.engine.prefix import PrefixChooser
from genrec.pool.counts import count_pool
from genrec.pool.pool import Pool
from genrec.rank.options import ORDERS, RankerConfig
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor
from genrec.steps.owner import read_owner
from genrec.steps.ticket import read_ticket


class PrefixChoice(EachAlone):
    """tokens, ticket, owner, candidates -> plan: the order, and whether the user's and the items' new KV is kept."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._options = RankerConfig.of(settings.artifact, settings.target)
        self._pool = Pool(settings.pool) if settings.pool else None
        name, model = chosen_prefix(settings, self._options), kv_model(settings)
        self._chooser = PrefixChooser(name, load_entry_layout(settings, self._config), model, self._pool)

    def look(self) -> None:
        """Count what the pool holds."""
        if self._pool:
            count_pool(self._pool)

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        ticket = read_ticket(request, self._options.longest_history(self._config))
        tokens = check_tensor(request, "tokens", np.int32)[: ticket.prompt_length]
        candidates = check_tensor(request, "candidates", np.int32)
        whose = read_owner(request).whose
        each = self._options.item_tokens
        many = len(candidates) // each
        chosen = self._chooser.choose(
            whose, tokens, candidates[: many * each].reshape(-1, each), time.monotonic_ns()
        )
        plan = [ORDERS.index(chosen.order), chosen.keep_user, chosen.keep_items]
        return {"plan": np.array([plan], np.int64)}
