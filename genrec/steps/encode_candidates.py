"""A history and candidates to what a ranker reads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError, InputError
from genrec.rank.item_tokens import FILE_NAME, item_tokens
from genrec.rank.kinds import EVENT_INPUTS
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each
from genrec.steps.candidates import read_candidates, read_top_k
from genrec.steps.encode_history import deadline_of, owner_of
from genrec.steps.ticket import Ticket, read_ticket
from genrec.steps.user_prefix import flat, read_prefix, tokens_of
from genrec.steps.versioned import Versioned


@dataclass(frozen=True)
class _RankTable:
    """One catalogue version: `codes` int32[n, L] and `tokens` int32[n, t] of its items."""

    catalogue: Catalogue
    codes: NDArray[np.int32]
    tokens: NDArray[np.int32]


class EncodeCandidates:
    """history, candidates and wishes -> the history's tokens, the distinct candidates that the catalogue knows.

    The first step of `rank`. In `recommend_and_rank` the ticket of the first step comes along: its catalogue version
    and its deadline hold here too, and the history is cut as it was there.
    """

    def __init__(self, settings: Settings) -> None:
        self._config, self._artifact = load_config(settings.artifact), settings.artifact
        self._loaded = Versioned(settings, "encode_candidates", self._load)
        self.close = self._loaded.close

    def _load(self, folder: Path) -> _RankTable:
        catalogue = load_catalogue(folder, self._config)
        catalogue.rows_of([])  # sorts the ids, which no request should wait for
        own = folder / FILE_NAME
        if (self._artifact / FILE_NAME).exists() and not own.exists():
            raise ArtifactError(own, "is missing; the artifact's items have tokens of their own")
        codes = tokens_of(catalogue, self._config)
        return _RankTable(catalogue, codes, item_tokens(folder, catalogue, self._config))

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._encode)

    def _encode(self, request: Tensors) -> Tensors:
        now = time.monotonic_ns()
        first = read_ticket(request, self._config.max_prompt) if "ticket" in request else None
        version = first.version if first else self._loaded.current
        loaded = self._loaded.of(version)
        if given := [name for name in EVENT_INPUTS if name in request]:
            raise InputError(given[0], "is given", "nothing: this ranker reads items alone")
        rows, prior, left_out = read_candidates(request, loaded.catalogue, first is not None)
        top_k = read_top_k(request)
        kept, dropped, cut = read_prefix(request, loaded.catalogue, self._config, newest=first is not None)
        if not len(rows):  # a retrieval that found nothing: the answer is empty
            kept, cut = kept[:0], cut + len(kept)
        deadline = first.deadline_ns if first else deadline_of(request, now)
        length = len(kept) * self._config.levels
        if not length and "candidate_scores" not in request:  # what else is there to go by
            prior = loaded.catalogue.popularity[rows].astype(np.float32)
        ticket = Ticket(top_k, length, deadline, dropped, cut, version)
        return {
            "tokens": flat(loaded.codes[kept]),
            "ticket": ticket.tensor(),
            "owner": owner_of(request),
            "candidates": flat(loaded.tokens[rows]),
            "codes": flat(loaded.codes[rows]),
            "item_ids": loaded.catalogue.item_ids[rows][None],
            "prior": prior[None],
            "left_out": np.array([[left_out]], np.int32),
        }
