"""A history with what is known of its events to the KV that its ranking by an HSTU ranker will begin with."""

from __future__ import annotations

import time

import numpy as np

from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors
from genrec.steps.encode_history import deadline_of
from genrec.steps.encode_prefix import ahead
from genrec.steps.ticket import Ticket
from genrec.steps.user_events import EventReader


class EncodeEventsAhead(EachAlone):
    """Used instead of `EncodePrefix`: history, user_id, ratings, times, features, and when the ranking is due.

    When it is asked for is the candidates' alone: the user's tokens do not say it.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = EventReader(settings, "encode_events_ahead")
        self.close = self._reader.loaded.close

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        now, version = time.monotonic_ns(), self._reader.loaded.current
        user = self._reader.user(request, self._reader.loaded.of(version))
        deadline = deadline_of(request, now, np.int64)
        ticket = Ticket(1, len(user.tokens), deadline, user.dropped, user.cut, version)
        return ahead(request, user.tokens, ticket, now)
