"""Prompt tokens to the last beam in one step, on the GPU: of the target `cuda` (xGR, section 7)."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config, load_validity
from genrec.errors import GenrecError, InputError
from genrec.steps import Answer, Settings, Tensors, check_tensor
from genrec.steps.loaded import Loaded
from genrec.steps.prompts import MAX_ROWS, read_prompt
from genrec.steps.ticket import Ticket
from genrec.validity import Blocked, ValidityIndex

if TYPE_CHECKING:
    from genrec.engine.cuda.generate import DeviceGenerator

MAX_BLOCKED = 1024  # nodes of one level that a request may exclude: a shape of the captured graphs


@dataclass(frozen=True)
class _Search:
    """One catalogue version: its index here, and the generation constrained by it on the device."""

    index: ValidityIndex
    generator: DeviceGenerator


class _Prompt(NamedTuple):
    place: int
    tokens: NDArray[np.int32]
    ticket: Ticket
    search: _Search
    blocked: Blocked


class Generate:
    """tokens, ticket, excluded -> prefixes (whole semantic IDs) and scores, ascending by prefix."""

    def __init__(self, settings: Settings) -> None:
        from genrec.engine.cuda import load_forward  # imports torch, which no other target needs

        self._config = load_config(settings.artifact)
        self._forward = load_forward(settings.artifact / "engines" / "cuda")
        self._width = settings.beam_width
        self._device = threading.Lock()  # a capture must not see what another thread allocates
        self._loaded = Loaded(settings, "generate", self._load)
        self.close = self._loaded.close

    def _load(self, folder: Path) -> _Search:
        """The weights are one for all versions; graphs are captured anew when a shape is first asked for."""
        from genrec.engine.cuda.beams import DeviceTree
        from genrec.engine.cuda.generate import DeviceGenerator

        index = load_validity(folder, self._config)
        with self._device:
            tree = DeviceTree.of(index, self._forward.device)
            return _Search(index, DeviceGenerator(self._forward, tree, self._width, MAX_BLOCKED))

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`. Prompts of one catalogue version, padded to the same length, run as one batch, itself
        padded to a power of two.
        """
        nothing: Tensors = {"prefixes": np.zeros((1, 1), np.int64), "scores": np.zeros((1, 1), np.float32)}
        answers: list[Answer] = [nothing for _ in requests]
        alike: dict[tuple[DeviceGenerator, int], list[_Prompt]] = defaultdict(list)
        for place, request in enumerate(requests):
            try:
                prompt = self._read(place, request)
                if prompt.ticket.prompt_length:
                    alike[prompt.search.generator, len(prompt.tokens)].append(prompt)
            except GenrecError as error:
                answers[place] = error
        for prompts in alike.values():
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
        search = self._loaded.of(ticket.version)
        blocked = search.index.blocked(check_tensor(request, "excluded", np.int32))
        most = max(len(nodes) for nodes in blocked.nodes)
        if most > MAX_BLOCKED:
            raise InputError("excluded", f"rules out {most} semantic IDs", f"at most {MAX_BLOCKED}")
        return _Prompt(place, tokens, ticket, search, blocked)

    def _generate(self, prompts: list[_Prompt]) -> list[Answer]:
        """One launch; the rows that fill a batch up repeat the first prompt and are thrown away."""
        batch = 1 << (len(prompts) - 1).bit_length()
        rows = prompts + prompts[:1] * (batch - len(prompts))
        tokens = np.stack([p.tokens for p in rows]).astype(np.int64)
        lengths = np.array([p.ticket.prompt_length for p in rows], np.int64)
        with self._device:
            found = prompts[0].search.generator.generate(tokens, lengths, [p.blocked for p in rows])
        return [
            {"prefixes": found.prefixes[b][alive][None], "scores": found.scores[b][alive][None]}
            for b, alive in enumerate(found.alive[: len(prompts)])
        ]
