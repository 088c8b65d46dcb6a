"""Which KV a ranking begins with: the user's, the items', or both (BAT, section 5.3)."""

from __future__ import annotations

import time

import numpy as np

from genrec import metrics
from genrec.artifact import load_config
from genrec.engine.load import chosen_prefix, kv_model, load_entry_layout
from genrec.pool.choice import Request, policy
from genrec.pool.keys import item_keys, owner_key, user_words, words
from genrec.pool.look import look
from genrec.pool.pool import Pool
from genrec.rank.options import OPTIONS, ORDERS, RankerConfig
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.ticket import read_ticket

FIXED = ("recompute", "user", "item", "split")  # need not know what the pool has


class PrefixChoice:
    """tokens, ticket, owner, candidates -> plan: the order, and whether the user's and the items' new KV is kept."""

    def __init__(self, settings: Settings) -> None:
        self._config, self._model = load_config(settings.artifact), kv_model(settings.artifact)
        self._layout = load_entry_layout(settings, self._config)
        options = RankerConfig.load(settings.artifact / "model" / OPTIONS)
        self._pool = Pool(settings.pool) if settings.pool else None
        self._name = chosen_prefix(settings, options)
        self._policy = policy(self._name, self._pool.hotness) if self._pool else None

    def look(self) -> None:
        """Count what the pool holds; every process that ranks changes it."""
        if self._pool:
            usage = self._pool.usage()
            metrics.POOL_BYTES.set(usage["bytes"])
            for kind, entries, evicted in (
                ("users", "entries", "evictions"),
                ("items", "items", "item_evictions"),
            ):
                metrics.POOL_ENTRIES.set(usage[entries], kind=kind)
                metrics.POOL_EVICTED.set(usage[evicted], kind=kind)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._choose)

    def _choose(self, request: Tensors) -> Tensors:
        ticket = read_ticket(request, self._config.max_prompt)
        tokens = check_tensor(request, "tokens", np.int32)[: ticket.prompt_length]
        candidates = check_tensor(request, "candidates", np.int32)
        named, user = (int(x) for x in check_tensor(request, "owner", np.int64, 2))
        if self._pool is None or self._policy is None or not ticket.prompt_length:
            return _plan(_order_of(self._name), keep_user=False, keep_items=False)
        pool, layout, each = self._pool, self._layout, self._layout.item_tokens
        many, owner, step = len(candidates) // each, user if named else None, self._config.levels
        hashes = user_words(pool.secret, self._model, layout.name, owner, tokens, step)
        cached = (0, 0)
        if self._name not in FIXED:
            keys = words(item_keys(self._model, layout.name, candidates[: many * each].reshape(-1, each)))
            cached = look(pool, hashes, step, keys)
        asked = Request(len(tokens), many, each, *cached)
        plan = self._policy.choose(
            asked, words([owner_key(pool.secret, owner)])[0], time.monotonic_ns(),
            lambda: pool.room(hashes, layout.user_bytes(len(tokens))),
        )  # fmt: skip
        return _plan(plan.order, plan.keep_user, plan.keep_items)


def _order_of(name: str) -> str:
    """Where there is no pool to reuse from."""
    return name if name in ORDERS else "whole"


def _plan(order: str, keep_user: bool, keep_items: bool) -> Tensors:
    return {"plan": np.array([[ORDERS.index(order), keep_user, keep_items]], np.int64)}
