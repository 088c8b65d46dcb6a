"""A history with what is known of its events, and candidates, to what an HSTU ranker reads."""

from __future__ import annotations

import time

import numpy as np

from genrec.rank.hstu import FEATURE
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors
from genrec.steps.candidates import read_candidates, read_top_k
from genrec.steps.encode_history import deadline_of
from genrec.steps.owner import owner_of
from genrec.steps.ticket import Ticket, read_ticket
from genrec.steps.user_events import EventReader
from genrec.steps.user_prefix import flat


class EncodeEvents(EachAlone):
    """As `EncodeCandidates`, in whose place it stands. Tokens are those of `genrec.rank.hstu`.

    Of a candidate, `candidates` has its own row and the seconds at which it is asked for, `codes` its codes' rows.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = EventReader(settings, "encode_events")
        self.close = self._reader.loaded.close

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        now, reader = time.monotonic_ns(), self._reader
        first = read_ticket(request, reader.generator.max_prompt) if "ticket" in request else None
        version = first.version if first else reader.loaded.current
        table = reader.loaded.of(version)
        # Before candidates: who finds out what this ranker reads may name one that is served no more.
        user = reader.user(request, table)
        rows, prior, left_out = read_candidates(request, table.catalogue, first is not None)
        top_k = read_top_k(request)
        if not len(rows):  # a retrieval that found nothing: the answer is empty
            events = int((user.tokens[:, FEATURE] == 0).sum())
            user = user._replace(tokens=user.tokens[:0], cut=user.cut + events)
        tokens = user.tokens
        deadline = first.deadline_ns if first else deadline_of(request, now)
        if not len(tokens) and "candidate_scores" not in request:  # what else is there to go by
            prior = table.catalogue.popularity_scores[rows]
        asked = np.stack((table.own[rows], np.full(len(rows), user.now, np.int32)), 1)
        return {
            "tokens": flat(tokens),
            "ticket": Ticket(top_k, len(tokens), deadline, user.dropped, user.cut, version).tensor(),
            "owner": owner_of(request, now),
            "candidates": flat(asked),
            "codes": flat(table.codes[rows]),
            "item_ids": table.catalogue.item_ids[rows][None],
            "prior": prior[None],
            "left_out": np.array([[left_out]], np.int32),
        }
