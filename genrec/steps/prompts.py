"""What all steps that read prompts share: checks, the lengths that prompts are padded to, and warm-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArenaFull, InputError
from genrec.models.config import ModelConfig
from genrec.settings import SPAN
from genrec.steps import Tensors, check_tensor
from genrec.steps.ticket import Ticket, read_ticket

T = TypeVar("T")


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
