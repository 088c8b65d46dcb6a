"""Prompt tokens and placeholders to the hidden states a draft needs, in one pass (NEZHA, section 3.2).

Beyond the paper: a named user's prompt goes on behind what the pool has of it, and is left there for his next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.draft.options import load_options
from genrec.engine.interface import Array, Past
from genrec.engine.load import load_engine
from genrec.errors import ModelError
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.prompts import spans, warm_up
from genrec.steps.prompts_later import Prompt, PromptsLater
from genrec.steps.ticket import Ticket


class PrefillDraft(PromptsLater):
    """tokens, ticket -> states float32[(1 + L) * hidden], a single 0 for an empty history.

    They travel by value: 1 KB for the models trained here, 16 KB for hidden states of 1024, which costs a hop
    less than a second look into the arena would.
    """

    def __init__(self, settings: Settings) -> None:
        config = load_config(settings.artifact, settings.target)
        self._engine, kept = load_engine(settings, config), None
        self._placeholders = load_options(settings.artifact).placeholder_tokens(config)
        if settings.pool and self._engine.draft_behind:
            # Here, as it imports numba: 0.3 s of every start.
            from genrec.engine.kept_prompts import KeptPrompts

            kept = KeptPrompts.of(settings, config, resumes=True)
        nothing = {"states": np.zeros((1, 1), np.float32)}
        super().__init__("prefill_draft", settings, config, kept, self._placeholders, nothing)
        warm_up([spans(config)[0]], self._try)
        self.begin([self._answers])

    def _try(self, span: int) -> None:
        self._states([np.zeros(span, np.int32)])
        if self._kept:
            self._behind_past(np.zeros(2, np.int64), self._kept.example())

    def asks(self, request: Tensors, ticket: Ticket) -> None:
        """See `PromptsLater.asks`."""

    def _answers(self, prompts: list[Prompt]) -> list[Answer]:
        """One engine call, and one for every prompt that is kept for its user."""
        states: dict[int, Array] = {}
        others = []
        for at, prompt in enumerate(prompts):
            if self._kept and prompt.visit and self._kept.takes(prompt.visit.owner, len(prompt.history)):
                states[at] = self._go_on(prompt)
            else:
                others.append(at)
        if others:
            states |= zip(others, self._states([prompts[at].history for at in others]), strict=True)
        return [_answer(states[at]) for at in range(len(prompts))]

    def _states(self, histories: list[NDArray[np.int32]]) -> Array:
        """[B, 1 + L, hidden] of prompts padded to one length, the placeholders right after each one's last token."""
        lengths = np.array([len(each) for each in histories], np.int64)
        extra = np.arange(self._placeholders)
        span = next(each for each in spans(self._config) if each >= lengths.max())
        tokens = np.zeros((len(histories), span + self._placeholders), np.int64)
        for row, history in zip(tokens, histories, strict=True):
            row[: len(history)] = history
        tokens[np.arange(len(tokens))[:, None], lengths[:, None] + extra] = self._config.vocab_size + extra
        return self._engine.draft_states(tokens, lengths)

    def _go_on(self, prompt: Prompt) -> Array:
        """States of a prompt that is kept for a user, behind what the pool has of it."""
        assert self._kept and prompt.visit
        tokens = prompt.history
        past = self._kept.past(prompt.visit, len(tokens))
        # The last one's state is read, of a prompt that is there whole too
        past = past._replace(tokens=min(past.tokens, len(tokens) - 1))
        states, new = self._behind_past(tokens[past.tokens :].astype(np.int64), past)
        if not np.isfinite(states).all():  # nor is its KV, which would be read again and again
            raise ModelError("states")
        self._kept.keep_behind(prompt.visit, tokens, past, new)
        self.count(len(tokens), past.tokens)
        return states

    def _behind_past(self, tokens: NDArray[np.int64], past: Past) -> tuple[Array, list[Array]]:
        """States of the last of `tokens` [Q] and of the placeholders [1, 1 + L, hidden]; new KV [1, G, Q + L, D]."""
        assert self._engine.draft_behind
        c, count = self._config, self._placeholders
        given = np.concatenate((tokens, c.vocab_size + np.arange(count)))[None]
        states = np.empty((1, 1 + count, c.hidden_size), np.float32)
        shape = (1, c.num_key_value_heads, given.shape[1], c.head_dim)
        new = [np.empty(shape, past.kv[0].dtype) for _ in past.kv]
        self._engine.draft_behind(given, past, states, new)
        return states, new


def _answer(states: Array) -> Answer:
    """Not of states that are no numbers: the next step would take them for what a request brings."""
    return {"states": states.reshape(1, -1)} if np.isfinite(states).all() else ModelError("states")
