"""What a request carries through all its steps: INT64[6]."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.errors import DeadlineExceeded, InputError
from genrec.steps import Tensors, check_tensor


class Ticket(NamedTuple):
    """`deadline_ns` is on the monotonic clock, one for all processes of a machine; 0 is none.

    `version` is the catalogue's, chosen by the first step and read by all others; 0, which no ensemble sends, is each
    step's current one.
    """

    top_k: int
    prompt_length: int
    deadline_ns: int
    dropped: int
    cut: int
    version: int

    def tensor(self) -> NDArray[np.int64]:
        """int64[1, 6]."""
        return np.array([self], np.int64)

    def check_deadline(self, step: str) -> None:
        """Raise DeadlineExceeded once there is no time left."""
        late = time.monotonic_ns() - self.deadline_ns
        if self.deadline_ns and late > 0:
            raise DeadlineExceeded(f"deadline_ms: passed {late / 1e6:.1f} ms before {step} began")


def read_ticket(request: Tensors, max_prompt: int) -> Ticket:
    """The ticket of a request, checked: it may come from anyone who can reach the server."""
    ticket = Ticket(*(int(x) for x in check_tensor(request, "ticket", np.int64, len(Ticket._fields))))
    if not 0 <= ticket.prompt_length <= max_prompt:
        raise InputError("ticket", f"says {ticket.prompt_length} prompt tokens", f"0 to {max_prompt}")
    if ticket.top_k < 1:
        raise InputError("ticket", f"says top_k {ticket.top_k}", "at least 1")
    return ticket
