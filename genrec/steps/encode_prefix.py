"""A history to the prefix that its ranking will begin with."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from genrec.rank.options import ONLY_USER
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor
from genrec.steps.encode_history import deadline_of
from genrec.steps.owner import owner_of
from genrec.steps.ticket import Ticket
from genrec.steps.user_prefix import PrefixReader, flat, read_prefix, refuse_events


class EncodePrefix(EachAlone):
    """history, user_id, and when the ranking is due -> tokens, ticket, owner, and the plan to rank nothing.

    The first step of `pre_infer`. What it reads of a history is what `encode_candidates` will read of the same one.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = PrefixReader(settings, "encode_prefix")
        self.close = self._reader.loaded.close

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        now, reader = time.monotonic_ns(), self._reader
        request = reader.users.complete(request)
        version = reader.loaded.current
        loaded = reader.loaded.of(version)
        refuse_events(request)
        deadline = deadline_of(request, now, np.int64)
        prefix = read_prefix(request, loaded.catalogue, reader.generator)
        length = len(prefix.rows) * reader.options.history_step(reader.generator)
        ticket = Ticket(1, length, deadline, prefix.dropped, prefix.cut, version)
        return ahead(request, loaded.history[prefix.rows], ticket, now)


def ahead(request: Tensors, tokens: NDArray[np.int32], ticket: Ticket, now: int) -> Tensors:
    """What the first step of `pre_infer` gives, of a user's tokens int32[n, m], for a request that came `now`.

    Raises InputError.
    """
    check_tensor(request, "user_id", np.int64, 1)  # without a name a ranking would not be known as his
    return {
        "tokens": flat(tokens),
        "ticket": ticket.tensor(),
        "owner": owner_of(request, now),
        "plan": np.array([[ONLY_USER, 1, 0]]),
    }
