"""Work on a request's KV between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.kv.arena import SCRATCH, Arena, Handle, Row
from genrec.steps import Tensors, check_tensor
from genrec.steps.ticket import Ticket

NO_PASS = np.array([-1], np.int32)  # `codes` of a request whose beams are items already


class Turn(NamedTuple):
    """A step's place in a request's order: steps take turns at its row, and prefill's was turn 0."""

    step: str
    number: int


def beam_search_of(level: int) -> Turn:
    """Reads the logits of `level`."""
    return Turn("beam_search", 2 * level - 1)


def decode_of(level: int) -> Turn:
    """Reads the codes of `level` and leaves the logits of the next."""
    return Turn("decode", 2 * level)


def handle_of(numbers: NDArray[np.int64]) -> Handle:
    """int64[4] as a handle."""
    segment, slot, generation, row = (int(x) for x in numbers)
    return segment, slot, generation, row


def read_handle(request: Tensors) -> Handle:
    """The request's `kv`."""
    return handle_of(check_tensor(request, "kv", np.int64, 4))


@contextmanager
def holding(
    arena: Arena, handle: Handle, ticket: Ticket, turn: Turn, beams: int | None = None, last: bool = False
) -> Iterator[Row]:
    """Hold a row while the step works whose turn it is; an error gives it back at once, and so does the last step.

    `beams` is for how many the step will have written. Raises StaleHandle, InputError when the ticket is another's.
    """
    row = arena.hold(handle, turn.number)
    try:
        ticket.check_deadline(turn.step)
        if handle != SCRATCH and ticket.prompt_length != row.length:
            said = f"says {ticket.prompt_length} prompt tokens"
            raise InputError("ticket", said, f"{row.length}, as it said to prefill")
        yield row
    except BaseException:
        arena.release(handle)
        raise
    if last:
        arena.release(handle)
    else:
        arena.rest(handle, beams)


def read_level(request: Tensors, levels: int) -> int:
    """The level the request's beams stand at, below `levels`."""
    level = int(check_tensor(request, "level", np.int32, 1)[0])
    if not 1 <= level < levels:
        raise InputError("level", f"is {level}", f"1 to {levels - 1}")
    return level
