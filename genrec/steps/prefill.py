"""Prompt tokens to KV in the arena, and the logits of the first level beside it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.engine.load import load_engine
from genrec.errors import ArenaFull, GenrecError
from genrec.kv.arena import NO_KV, Arena
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.kv_handle import handle_of
from genrec.steps.prompts import read_prompt, spans, warm_up

MAX_ROWS = 8  # of one engine call: a region needs adjacent slots, and larger batches gain nothing on a CPU
Int64 = NDArray[np.int64]


class Prefill:
    """tokens, ticket -> kv, the handle of what was written."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._engine = load_engine(settings, self._config)
        self._arena = Arena(settings.arena)
        warm_up([(1, spans(self._config)[0])], self._try)

    def _try(self, shape: tuple[int, int]) -> None:
        """Write a batch of that shape and give it back."""
        for answer in self._write(np.zeros(shape, np.int64), np.ones(shape[0], np.int64)):
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
        answers: list[Answer] = [{"kv": np.array([NO_KV], np.int64)} for _ in requests]
        by_length: dict[int, list[tuple[int, NDArray[np.int32], int]]] = defaultdict(list)
        for place, request in enumerate(requests):
            try:
                tokens, ticket = read_prompt(request, self._config)
                ticket.check_deadline("prefill")
                if ticket.prompt_length:
                    by_length[len(tokens)].append((place, tokens, ticket.prompt_length))
            except GenrecError as error:
                answers[place] = error
        for prompts in by_length.values():
            for start in range(0, len(prompts), MAX_ROWS):
                places, rows, lengths = zip(*prompts[start : start + MAX_ROWS], strict=True)
                try:
                    written = self._write(np.stack(rows).astype(np.int64), np.array(lengths, np.int64))
                except GenrecError as error:
                    written = [error] * len(places)
                for place, answer in zip(places, written, strict=True):
                    answers[place] = answer
        return answers

    def _write(self, tokens: Int64, lengths: Int64) -> list[Answer]:
        """One engine call for tokens [B, S] padded on the right, lengths [B]; on any failure the region is given back.

        A batch needs adjacent slots: where only scattered ones are free, it runs in parts.
        """
        rows, span = tokens.shape
        try:
            region = self._arena.allocate(rows, span, lengths)
        except ArenaFull as full:
            if rows == 1:
                return [full]
            halves = np.array_split(tokens, 2), np.array_split(lengths, 2)
            return [answer for half in zip(*halves, strict=True) for answer in self._write(*half)]
        try:
            self._engine.prefill(tokens, lengths, region)
        except BaseException:
            for handle in region.handles:
                self._arena.release(handle)
            raise
        for handle in region.handles:
            self._arena.rest(handle, beams=1)
        return [{"kv": np.array([handle], np.int64)} for handle in region.handles]
