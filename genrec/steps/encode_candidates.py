"""A history and candidates to what a ranker reads."""

from __future__ import annotations

import time

import numpy as np

from genrec.models.prompt import newest_start, window_start
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors
from genrec.steps.candidates import read_candidates, read_top_k
from genrec.steps.encode_history import deadline_of
from genrec.steps.owner import owner_of
from genrec.steps.ticket import Ticket, read_ticket
from genrec.steps.user_prefix import PrefixReader, flat, read_prefix, refuse_events


class EncodeCandidates(EachAlone):
    """history, candidates and wishes -> the history's tokens, the distinct candidates that the catalogue knows.

    The first step of `rank`. In `recommend_and_rank` the ticket of the first step comes along: its catalogue version
    and its deadline hold here too, and a history of semantic IDs is cut as it was there.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = PrefixReader(settings, "encode_candidates")
        self.close = self._reader.loaded.close

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        now, reader = time.monotonic_ns(), self._reader
        request = reader.users.complete(request)
        first = read_ticket(request, reader.generator.max_prompt) if "ticket" in request else None
        version = first.version if first else reader.loaded.current
        loaded = reader.loaded.of(version)
        refuse_events(request)
        rows, prior, left_out = read_candidates(request, loaded.catalogue, first is not None)
        top_k = read_top_k(request)
        as_retrieved = first is not None and reader.options.history == "codes"  # its KV is the user's
        start = newest_start if as_retrieved and "user_id" not in request else window_start
        kept, dropped, cut = read_prefix(request, loaded.catalogue, reader.generator, start)
        if not len(rows):  # a retrieval that found nothing: the answer is empty
            kept, cut = kept[:0], cut + len(kept)
        deadline = first.deadline_ns if first else deadline_of(request, now)
        length = len(kept) * reader.options.history_step(reader.generator)
        if not length and "candidate_scores" not in request:  # what else is there to go by
            prior = loaded.catalogue.popularity_scores[rows]
        ticket = Ticket(top_k, length, deadline, dropped, cut, version)
        return {
            "tokens": flat(loaded.history[kept]),
            "ticket": ticket.tensor(),
            "owner": owner_of(request, now),
            "candidates": flat(loaded.candidates[rows]),
            "codes": flat(loaded.codes[rows]),
            "item_ids": loaded.catalogue.item_ids[rows][None],
            "prior": prior[None],
            "left_out": np.array([[left_out]], np.int32),
        }
