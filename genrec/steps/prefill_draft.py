"""Prompt tokens and placeholders to the hidden states a draft needs, in one pass (NEZHA, section 3.2)."""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_config
from genrec.draft.options import load_options
from genrec.engine.load import load_engine
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.prompts import PaddedPrompts, read_prompts, spans, warm_up


class PrefillDraft:
    """tokens, ticket -> states float32[(1 + L) * hidden], a single 0 for an empty history.

    They travel by value: 1 KB for the models trained here, 16 KB for hidden states of 1024, which costs a hop
    less than a second look into the arena would.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._engine = load_engine(settings, self._config)
        self._placeholders = load_options(settings.artifact).placeholder_tokens(self._config)
        warm_up([(1, spans(self._config)[0])], self._try)

    def _try(self, shape: tuple[int, int]) -> None:
        self._states(PaddedPrompts(np.zeros(shape, np.int64), np.ones(shape[0], np.int64)))

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts padded to the same length run as one batch."""
        nothing = {"states": np.zeros((1, 1), np.float32)}
        return read_prompts(requests, self._config, "prefill_draft", nothing, self._states)

    def _states(self, batch: PaddedPrompts) -> list[Answer]:
        """One engine call, the placeholders right after each row's last real token."""
        extra = np.arange(self._placeholders)
        tokens = np.pad(batch.tokens, ((0, 0), (0, self._placeholders)))
        tokens[np.arange(len(tokens))[:, None], batch.lengths[:, None] + extra] = (
            self._config.vocab_size + extra
        )
        states = self._engine.draft_states(tokens, batch.lengths)
        return [{"states": row.reshape(1, -1)} for row in states]
