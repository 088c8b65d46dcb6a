"""Work on a request's KV between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError, StaleHandle
from genrec.kv.arena import SCRATCH, Arena, Handle, Row
from genrec.steps import Tensors, check_tensor
from genrec.steps.ticket import Ticket

NO_PASS = np.array([-1], np.int32)  # `codes` of a request whose beams are items already


def handle_of(numbers: NDArray[np.int64]) -> Handle:
    """int64[4] as a handle."""
    segment, slot, generation, row = (int(x) for x in numbers)
    return segment, slot, generation, row


def read_handle(request: Tensors) -> Handle:
    """The request's `kv`."""
    return handle_of(check_tensor(request, "kv", np.int64, 4))


@contextmanager
def holding(arena: Arena, handle: Handle, ticket: Ticket, step: str, last: bool = False) -> Iterator[Row]:
    """Hold a row while `step` works; an error gives it back at once, and so does the last step."""
    row = arena.hold(handle)
    try:
        ticket.check_deadline(step)
        if handle != SCRATCH and not 1 <= ticket.prompt_length <= row.span:
            raise StaleHandle(
                f"kv: the slot holds prompts of up to {row.span} tokens, the ticket says {ticket.prompt_length}"
            )
        yield row
    except BaseException:
        arena.release(handle)
        raise
    if last:
        arena.release(handle)
    else:
        arena.rest(handle)


def read_level(request: Tensors, levels: int) -> int:
    """The level the request's beams stand at, below `levels`."""
    level = int(check_tensor(request, "level", np.int32, 1)[0])
    if not 1 <= level < levels:
        raise InputError("level", f"is {level}", f"1 to {levels - 1}")
    return level
