"""Prompt tokens and placeholders to the hidden states a draft needs, in one pass (NEZHA, section 3.2).

Beyond the paper: a named user's prompt goes on behind what the pool has of it, and is left there for his next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.draft.options import load_options
from genrec.engine.interface import Array, Past
from genrec.engine.load import load_engine
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.prompts import PaddedPrompts, read_owner, read_prompts, spans, warm_up
from genrec.steps.ticket import Ticket


class PrefillDraft:
    """tokens, ticket -> states float32[(1 + L) * hidden], a single 0 for an empty history.

    They travel by value: 1 KB for the models trained here, 16 KB for hidden states of 1024, which costs a hop
    less than a second look into the arena would.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._engine = load_engine(settings, self._config)
        self._placeholders = load_options(settings.artifact).placeholder_tokens(self._config)
        self._kept = None
        if settings.pool and self._engine.draft_behind:
            # Here, as it imports numba: 0.3 s of every start.
            from genrec.engine.kept_prompts import KeptPrompts

            self._kept = KeptPrompts.of(settings, self._config)
        warm_up([(1, spans(self._config)[0])], self._try)

    def _try(self, shape: tuple[int, int]) -> None:
        self._states(PaddedPrompts(np.zeros(shape, np.int64), np.ones(shape[0], np.int64)))
        if self._kept:
            self._behind(np.zeros(2, np.int64), self._kept.example())

    def look(self) -> None:
        """Count what the pool holds, where prompts are kept."""
        if self._kept:
            self._kept.look()

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts padded to the same length run as one batch, prompts that are kept by themselves."""
        nothing = {"states": np.zeros((1, 1), np.float32)}
        return read_prompts(requests, self._config, "prefill_draft", nothing, self._states, self._go_on)

    def _states(self, batch: PaddedPrompts) -> list[Answer]:
        """One engine call, the placeholders right after each row's last real token."""
        extra = np.arange(self._placeholders)
        tokens = np.pad(batch.tokens, ((0, 0), (0, self._placeholders)))
        tokens[np.arange(len(tokens))[:, None], batch.lengths[:, None] + extra] = (
            self._config.vocab_size + extra
        )
        states = self._engine.draft_states(tokens, batch.lengths)
        return [{"states": row.reshape(1, -1)} for row in states]

    def _go_on(self, request: Tensors, tokens: NDArray[np.int32], ticket: Ticket) -> Tensors | None:
        """States of a prompt that is kept for a user, behind what the pool has of it; None for others."""
        kept, owner = self._kept, read_owner(request)
        if not kept or not owner or not kept.takes(owner, ticket.prompt_length):
            return None
        prompt = tokens[: ticket.prompt_length]
        found = kept.find(owner, prompt)
        try:
            past = kept.past(found, len(prompt))
            states, new = self._behind(prompt[past.tokens :].astype(np.int64), past)
            kept.keep_behind(owner, prompt, past, new)
        finally:
            if found:
                kept.release(found)
        metrics.GENERATE_TOKENS.add(past.tokens, kind="reused")
        metrics.GENERATE_TOKENS.add(len(prompt) - past.tokens, kind="computed")
        return {"states": states.reshape(1, -1)}

    def _behind(self, tokens: NDArray[np.int64], past: Past) -> tuple[Array, list[Array]]:
        """States of the last of `tokens` [Q] and of the placeholders [1, 1 + L, hidden]; new KV [1, G, Q + L, D]."""
        assert self._engine.draft_behind
        c, count = self._config, self._placeholders
        given = np.concatenate((tokens, c.vocab_size + np.arange(count)))[None]
        states = np.empty((1, 1 + count, c.hidden_size), np.float32)
        shape = (1, c.num_key_value_heads, given.shape[1], c.head_dim)
        new = [np.empty(shape, past.kv[0].dtype) for _ in past.kv]
        self._engine.draft_behind(given, past, states, new)
        return states, new
