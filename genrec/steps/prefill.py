"""Prompt tokens to KV in the arena, and the logits of the first level beside it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from genrec.arena import NO_KV, Arena, Handle
from genrec.artifact import load_config, load_engine_of
from genrec.errors import GenrecError, InputError
from genrec.steps import Answer, Settings, Tensors, check_tensor
from genrec.steps.ticket import Ticket, read_ticket

MAX_ROWS = 8  # of one engine call: a region needs adjacent slots, and larger batches gain nothing on a CPU


class Prefill:
    """tokens, ticket -> kv, the handle of what was written."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._engine = load_engine_of(settings, self._config)
        self._arena = Arena(settings.arena)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts padded to the same length run as one batch."""
        answers: list[Answer] = [{"kv": np.array([NO_KV], np.int64)} for _ in requests]
        batches: dict[int, list[tuple[int, Tensors, Ticket]]] = defaultdict(list)
        for place, request in enumerate(requests):
            try:
                tokens = check_tensor(request, "tokens", np.int32)
                ticket = read_ticket(request, min(self._config.max_prompt, len(tokens)))
                if len(tokens) > self._config.max_prompt:
                    raise InputError(
                        "tokens", f"has {len(tokens)} values", f"at most {self._config.max_prompt}"
                    )
                if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._config.vocab_size:
                    raise InputError(
                        "tokens",
                        f"span {tokens.min()} to {tokens.max()}",
                        f"0 to {self._config.vocab_size - 1}",
                    )
                ticket.check_deadline("prefill")
                if ticket.prompt_length:
                    batches[len(tokens)].append((place, request, ticket))
            except GenrecError as error:
                answers[place] = error
        for batch in batches.values():
            for start in range(0, len(batch), MAX_ROWS):
                part = batch[start : start + MAX_ROWS]
                try:
                    handles = self._write(part)
                except GenrecError as error:
                    for place, _, _ in part:
                        answers[place] = error
                else:
                    for (place, _, _), handle in zip(part, handles, strict=True):
                        answers[place] = {"kv": np.array([handle], np.int64)}
        return answers

    def _write(self, batch: list[tuple[int, Tensors, Ticket]]) -> tuple[Handle, ...]:
        """One engine call; on any failure the region is given back."""
        tokens = np.concatenate([request["tokens"] for _, request, _ in batch]).astype(np.int64)
        lengths = np.array([ticket.prompt_length for _, _, ticket in batch], np.int64)
        region = self._arena.allocate(len(batch), tokens.shape[1])
        try:
            self._engine.prefill(tokens, lengths, region)
        except BaseException:
            for handle in region.handles:
                self._arena.release(handle)
            raise
        for handle in region.handles:
            self._arena.rest(handle)
        return region.handles
