"""What both ways of reading a prompt share: checks, and batches of prompts padded to one length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArenaFull, GenrecError, InputError
from genrec.models.config import ModelConfig
from genrec.settings import SPAN
from genrec.steps import Answer, Tensors, check_tensor
from genrec.steps.ticket import Ticket, read_ticket

MAX_ROWS = 8  # of one engine call: a region needs adjacent slots, and larger batches gain nothing on a CPU

T = TypeVar("T")


@dataclass(frozen=True)
class PaddedPrompts:
    """Prompts of one engine call: tokens int64[B, S] padded on the right, lengths int64[B] >= 1."""

    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def halves(self) -> tuple[PaddedPrompts, PaddedPrompts]:
        """The same prompts as two batches."""
        middle = len(self.lengths) // 2
        return PaddedPrompts(self.tokens[:middle], self.lengths[:middle]), PaddedPrompts(
            self.tokens[middle:], self.lengths[middle:]
        )


def spans(config: ModelConfig) -> list[int]:
    """Every length that prompts are padded to, ascending."""
    return [min(end, config.max_prompt) for end in range(SPAN, config.max_prompt + SPAN, SPAN)]


def warm_up(graphs: Iterable[T], run: Callable[[T], None]) -> None:
    """Run each graph once, in one shape. Requests may wait for other shapes: a server that starts is wanted soon.

    A graph's first run takes 300 to 1,100 ms, the first of any other shape 5 to 30 ms more than the next (4 layers of
    256, two cores). Other processes warm up at the same time, so a small arena may be full; then requests do the rest.
    """
    for graph in graphs:
        try:
            run(graph)
        except ArenaFull:
            return


def read_prompts(
    requests: list[Tensors],
    config: ModelConfig,
    step: str,
    without_prompt: Tensors,
    run: Callable[[PaddedPrompts], list[Answer]],
) -> list[Answer]:
    """Answer every request: `run` gives one answer per row of a batch, an empty history gets `without_prompt`."""
    answers: list[Answer] = [without_prompt for _ in requests]
    by_length: dict[int, list[tuple[int, NDArray[np.int32], Ticket]]] = defaultdict(list)
    for place, request in enumerate(requests):
        try:
            tokens, ticket = read_prompt(request, config)
            ticket.check_deadline(step)
            if ticket.prompt_length:
                by_length[len(tokens)].append((place, tokens, ticket))
        except GenrecError as error:
            answers[place] = error
    for prompts in by_length.values():
        for start in range(0, len(prompts), MAX_ROWS):
            part = prompts[start : start + MAX_ROWS]
            lengths = np.array([ticket.prompt_length for _, _, ticket in part], np.int64)
            try:
                rows = run(PaddedPrompts(np.stack([t for _, t, _ in part]).astype(np.int64), lengths))
            except GenrecError as error:
                rows = [error] * len(part)
            for (place, _, _), answer in zip(part, rows, strict=True):
                answers[place] = answer
    return answers


def read_prompt(
    request: Tensors, config: ModelConfig, most: int | None = None
) -> tuple[NDArray[np.int32], Ticket]:
    """The prompt's tokens, at most `most` or those of the generator's longest, and its ticket. Raises InputError."""
    tokens, most = check_tensor(request, "tokens", np.int32), most or config.max_prompt
    ticket = read_ticket(request, min(most, len(tokens)))
    if len(tokens) > most:
        raise InputError("tokens", f"has {len(tokens)} values", f"at most {most}")
    if len(tokens):
        check_range("tokens", tokens, config.vocab_size - 1)
    return tokens, ticket


def check_range(field: str, values: NDArray[np.int32], most: int) -> None:
    """Refuse values, one at least, that are not all from 0 to `most`. Raises InputError."""
    if not 0 <= int(values.min()) <= int(values.max()) <= most:
        raise InputError(field, f"span {values.min()} to {values.max()}", f"0 to {most}")
