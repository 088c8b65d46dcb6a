"""Prompt tokens to KV in the arena, and the logits of the first level beside it."""

from __future__ import annotations

import numpy as np

from genrec import metrics
from genrec.artifact import load_config
from genrec.engine.load import load_engine
from genrec.errors import ArenaFull
from genrec.kv.arena import NO_KV, Arena
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.kv_handle import handle_of
from genrec.steps.prompts import PaddedPrompts, read_prompts, spans, warm_up


class Prefill:
    """tokens, ticket -> kv, the handle of what was written."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._engine = load_engine(settings, self._config)
        self._arena = Arena(settings.arena)
        warm_up([(1, spans(self._config)[0])], self._try)

    def _try(self, shape: tuple[int, int]) -> None:
        """Write a batch of that shape and give it back."""
        for answer in self._write(PaddedPrompts(np.zeros(shape, np.int64), np.ones(shape[0], np.int64))):
            if isinstance(answer, dict):
                handle = handle_of(answer["kv"][0])
                self._arena.hold(handle)
                self._arena.release(handle)

    def look(self) -> None:
        """Count the arena's slots; every process of the staged ensemble changes them."""
        for state, slots in self._arena.usage().items():
            metrics.ARENA_SLOTS.set(slots, state=state)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts padded to the same length run as one batch."""
        nothing = {"kv": np.array([NO_KV], np.int64)}
        return read_prompts(requests, self._config, "prefill", nothing, self._write)

    def _write(self, batch: PaddedPrompts) -> list[Answer]:
        """One engine call; on any failure the region is given back.

        A batch needs adjacent slots: where only scattered ones are free, it runs in parts.
        """
        rows, span = batch.tokens.shape
        try:
            region = self._arena.allocate(rows, span, batch.lengths)
        except ArenaFull as full:
            if len(batch.lengths) == 1:
                return [full]
            return [answer for half in batch.halves() for answer in self._write(half)]
        try:
            self._engine.prefill(batch.tokens, batch.lengths, region)
        except BaseException:
            for handle in region.handles:
                self._arena.release(handle)
            raise
        for handle in region.handles:
            self._arena.rest(handle, beams=1)
        return [{"kv": np.array([handle], np.int64)} for handle in region.handles]
