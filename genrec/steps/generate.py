"""Prompt tokens to the last beam in one step, on the GPU: of the target `cuda` (xGR, section 7)."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config, load_validity
from genrec.errors import GenrecError, InputError
from genrec.steps import Answer, Settings, Tensors, check_tensor
from genrec.steps.prompts import MAX_ROWS, read_prompt
from genrec.steps.ticket import Ticket
from genrec.validity import Blocked

MAX_BLOCKED = 1024  # nodes of one level that a request may exclude: a shape of the captured graphs


class _Prompt(NamedTuple):
    place: int
    tokens: NDArray[np.int32]
    ticket: Ticket
    blocked: Blocked


class Generate:
    """tokens, ticket, excluded -> prefixes (whole semantic IDs) and scores, ascending by prefix."""

    def __init__(self, settings: Settings) -> None:
        from genrec.engine.cuda import load_device_generator  # imports torch, which no other target needs

        self._config = load_config(settings.artifact)
        self._index = load_validity(settings.artifact, self._config)
        folder = settings.artifact / "engines" / "cuda"
        self._generator = load_device_generator(folder, settings.beam_width, MAX_BLOCKED)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts padded to the same length run as one batch, itself padded to a power of two."""
        nothing: Tensors = {"prefixes": np.zeros((1, 1), np.int64), "scores": np.zeros((1, 1), np.float32)}
        answers: list[Answer] = [nothing for _ in requests]
        by_length: dict[int, list[_Prompt]] = defaultdict(list)
        for place, request in enumerate(requests):
            try:
                prompt = self._read(place, request)
                if prompt.ticket.prompt_length:
                    by_length[len(prompt.tokens)].append(prompt)
            except GenrecError as error:
                answers[place] = error
        for prompts in by_length.values():
            for start in range(0, len(prompts), MAX_ROWS):
                part = prompts[start : start + MAX_ROWS]
                try:
                    rows = self._generate(part)
                except GenrecError as error:
                    rows = [error] * len(part)
                for prompt, answer in zip(part, rows, strict=True):
                    answers[prompt.place] = answer
        return answers

    def _read(self, place: int, request: Tensors) -> _Prompt:
        tokens, ticket = read_prompt(request, self._config)
        ticket.check_deadline("generate")
        blocked = self._index.blocked(check_tensor(request, "excluded", np.int32))
        most = max(len(nodes) for nodes in blocked.nodes)
        if most > MAX_BLOCKED:
            raise InputError("excluded", f"rules out {most} semantic IDs", f"at most {MAX_BLOCKED}")
        return _Prompt(place, tokens, ticket, blocked)

    def _generate(self, prompts: list[_Prompt]) -> list[Answer]:
        """One launch; the rows that fill a batch up repeat the first prompt and are thrown away."""
        batch = 1 << (len(prompts) - 1).bit_length()
        rows = prompts + prompts[:1] * (batch - len(prompts))
        tokens = np.stack([p.tokens for p in rows]).astype(np.int64)
        lengths = np.array([p.ticket.prompt_length for p in rows], np.int64)
        found = self._generator.generate(tokens, lengths, [p.blocked for p in rows])
        return [
            {"prefixes": found.prefixes[b][alive][None], "scores": found.scores[b][alive][None]}
            for b, alive in enumerate(found.alive[: len(prompts)])
        ]
