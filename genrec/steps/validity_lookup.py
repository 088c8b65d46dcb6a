"""Semantic IDs to items: every one is looked up in the set of valid ones before it is answered."""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_catalogue, load_config, load_valid_ids, load_validity
from genrec.errors import InputError
from genrec.lookup import PopularityRanking, lookup
from genrec.steps import Answer, Settings, Tensors, answer_each, check_tensor
from genrec.steps.ticket import read_ticket
from genrec.validity import check_rows

MODEL, POPULARITY = 0, 1  # who answered, in `report`


class ValidityLookup:
    """prefixes (whole semantic IDs), scores, ticket, excluded -> item_ids, scores, report."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._catalogue = load_catalogue(settings.artifact, self._config)
        self._index = load_validity(settings.artifact, self._config)
        self._popular = PopularityRanking.build(self._catalogue.popularity, self._catalogue.item_ids)
        self._valid = load_valid_ids(settings.artifact, self._index)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._look_up)

    def _look_up(self, request: Tensors) -> Tensors:
        ticket = read_ticket(request, self._config.max_prompt)
        ids = check_tensor(request, "prefixes", np.int64)
        scores = check_tensor(request, "scores", np.float32, len(ids))
        excluded = check_rows(check_tensor(request, "excluded", np.int32), len(self._catalogue))
        if ticket.top_k > len(self._catalogue):
            raise InputError(
                "ticket",
                f"says top_k {ticket.top_k}",
                f"1 to {len(self._catalogue)}, the items of the catalogue",
            )
        ticket.check_deadline("validity_lookup")
        if ticket.prompt_length == 0:
            source, valid = POPULARITY, 0
            items, best = self._popular.top(ticket.top_k, excluded)
        else:
            source, names = MODEL, self._catalogue.item_ids
            items, best, invalid = lookup(
                self._index, self._valid, names, ids, scores, ticket.top_k, excluded
            )
            valid = len(ids) - invalid
        report = np.array([[source, ticket.dropped, ticket.cut, ticket.prompt_length, valid]], np.int64)
        return {"item_ids": items[None], "scores": best[None], "report": report}
