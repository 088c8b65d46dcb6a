"""A history and candidates to what a ranker reads."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.rank.options import MOST_CANDIDATES, OPTIONS, RankerConfig
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.encode_history import deadline_of, owner_of
from genrec.steps.ticket import Ticket, read_ticket
from genrec.steps.user_prefix import flat, load_rank_table, read_prefix
from genrec.steps.versioned import Versioned


class EncodeCandidates:
    """history, candidates and wishes -> the history's tokens, the distinct candidates that the catalogue knows.

    The first step of `rank`. In `recommend_and_rank` the ticket of the first step comes along: its catalogue version
    and its deadline hold here too, and a history of semantic IDs is cut as it was there.
    """

    def __init__(self, settings: Settings) -> None:
        artifact = settings.artifact
        self._config = config = load_config(artifact)
        self._options = options = RankerConfig.load(artifact / "model" / OPTIONS)
        self._loaded = Versioned(
            settings, "encode_candidates", lambda folder: load_rank_table(artifact, folder, config, options)
        )
        self.close = self._loaded.close

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._encode)

    def _encode(self, request: Tensors) -> Tensors:
        now = time.monotonic_ns()
        first = read_ticket(request, self._config.max_prompt) if "ticket" in request else None
        version = first.version if first else self._loaded.current
        loaded = self._loaded.of(version)
        rows, prior, left_out = self._candidates(request, loaded.catalogue)
        if not len(rows) and not first:
            asked = request["candidates"][0]
            problem = f"names no item of the catalogue; {asked[0]} is none" if len(asked) else "is empty"
            raise InputError("candidates", problem, f"1 to {MOST_CANDIDATES} item ids")
        top_k = int(check_tensor(request, "top_k", np.int32, 1)[0])
        if not 1 <= top_k <= MOST_CANDIDATES:
            raise InputError("top_k", f"is {top_k}", f"1 to {MOST_CANDIDATES}")
        as_retrieved = first is not None and self._options.history == "codes"  # its KV is the user's
        kept, dropped, cut = read_prefix(request, loaded.catalogue, self._config, newest=as_retrieved)
        if not len(rows):  # a retrieval that found nothing: the answer is empty
            kept, cut = kept[:0], cut + len(kept)
        deadline = first.deadline_ns if first else deadline_of(request, now)
        length = len(kept) * self._options.history_step(self._config)
        if not length and "candidate_scores" not in request:  # what else is there to go by
            prior = loaded.catalogue.popularity[rows].astype(np.float32)
        ticket = Ticket(top_k, length, deadline, dropped, cut, version)
        return {
            "tokens": flat(loaded.history[kept]),
            "ticket": ticket.tensor(),
            "owner": owner_of(request),
            "candidates": flat(loaded.candidates[rows]),
            "codes": flat(loaded.codes[rows]),
            "item_ids": loaded.catalogue.item_ids[rows][None],
            "prior": prior[None],
            "left_out": np.array([[left_out]], np.int32),
        }

    def _candidates(
        self, request: Tensors, catalogue: Catalogue
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], int]:
        """Catalogue rows, the score that each came with or 0, and how many were left out."""
        asked = check_tensor(request, "candidates", np.int64, most=MOST_CANDIDATES)
        rows = catalogue.rows_of(asked)
        _, first = np.unique(rows, return_index=True)
        first = np.sort(first[rows[first] >= 0])
        kept = rows[first]
        if "candidate_scores" in request:
            prior = check_tensor(request, "candidate_scores", np.float32, len(asked))[first]
            if not np.isfinite(prior).all():
                raise InputError("candidate_scores", "has infinite values", "finite numbers")
        else:
            prior = np.zeros(len(first), np.float32)
        return kept, prior, len(asked) - len(first)
