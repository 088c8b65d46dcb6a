"""Item ids to prompt tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import InputError
from genrec.models.prompt import newest_start, prompt_of, window_start
from genrec.rank.options import MOST_CANDIDATES, USUAL_CANDIDATES
from genrec.settings import MAX_DEADLINE_MS, SPAN, Settings
from genrec.steps import EachAlone, Tensors, check_tensor
from genrec.steps.known_users import KnownUsers
from genrec.steps.owner import owner_of
from genrec.steps.ticket import Ticket
from genrec.steps.versioned import Versioned
from genrec.steps.wishes import excluded_by
from genrec.target import target_of


@dataclass(frozen=True)
class _TokenTable:
    """One catalogue version: `tokens` int32[n, L] of its items."""

    catalogue: Catalogue
    groups: Groups
    tokens: NDArray[np.int32]


class EncodeHistory(EachAlone):
    """history [1, n] and wishes -> tokens, ticket and the catalogue rows that must not be answered.

    The first step: the catalogue version it writes into the ticket is the request's through all steps.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._width = settings.beam_width
        self._shortest = target_of(settings.target).shortest_prompt
        self._users = KnownUsers(settings.artifact)
        self._loaded = Versioned(settings, "encode_history", self._load)
        self.close = self._loaded.close

    def _load(self, folder: Path) -> _TokenTable:
        catalogue = load_catalogue(folder, self._config)
        catalogue.rows_of([])  # makes its table of ids, which no request should wait for
        offsets = np.array(self._config.code_offsets, np.int32)
        groups = Groups.load(folder, len(catalogue))
        return _TokenTable(catalogue, groups, np.ascontiguousarray(catalogue.codes + offsets))

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        now, request = time.monotonic_ns(), self._users.complete(request)
        version = self._loaded.current
        loaded = self._loaded.of(version)
        rows = loaded.catalogue.rows_of(check_tensor(request, "history", np.int64))
        top_k = self._top_k(request, len(loaded.catalogue))
        known = rows[rows >= 0]
        start = window_start if "user_id" in request else newest_start  # he may come again
        kept = known[start(len(known), self._config.max_history) :]
        excluded, left = excluded_by(request, known, loaded.catalogue, loaded.groups)
        # With nothing left to find, no prompt: the answer is empty, and there is no beam that could search for it.
        length = self._config.prompt_length(len(kept)) if left else 0
        tokens = np.zeros((1, self._span(length)), np.int32)
        tokens[0, :length] = prompt_of(self._config, loaded.tokens[kept])[:length]
        unknown, cut = len(rows) - len(known), len(known) - len(kept)
        ticket = Ticket(
            top_k,
            length,
            deadline_of(request, now),
            dropped=unknown,
            cut=cut,
            version=version,
        )
        for kind, items in (("read", len(kept) if left else 0), ("unknown", unknown), ("cut", cut)):
            metrics.HISTORY_ITEMS.add(items, kind=kind)
        metrics.PROMPT_TOKENS.observe(length)
        return {
            "tokens": tokens,
            "ticket": ticket.tensor(),
            "owner": owner_of(request, now),
            "excluded": excluded[None],
        }

    def _top_k(self, request: Tensors, items: int) -> int:
        """How many are to be found: where a ranking follows, as many as it wants to `retrieve`, or the usual number."""
        field, most = "top_k", min(self._width, items)
        if "retrieve" in request or "rank_top_k" in request:
            field, most = "retrieve", min(most, MOST_CANDIDATES)
            if field not in request:
                answered = {"top_k": request["rank_top_k"]}
                return min(max(USUAL_CANDIDATES, int(check_tensor(answered, "top_k", np.int32, 1)[0])), most)
        top_k = int(check_tensor(request, field, np.int32, 1)[0])
        if not 1 <= top_k <= most:
            limit = f"1 to {most}: the beam width is {self._width}, the catalogue has {items} items"
            limit += f", at most {MOST_CANDIDATES} are ranked" if field == "retrieve" else ""
            raise InputError(field, f"is {top_k}", limit)
        return top_k

    def _span(self, length: int) -> int:
        """Tokens that a prompt of `length` is padded to."""
        return min(-(-max(length, self._shortest) // SPAN) * SPAN, self._config.max_prompt)


def deadline_of(request: Tensors, now: int, dtype: type[np.signedinteger[Any]] = np.int32) -> int:
    """When a request that came at `now` must be answered, on the monotonic clock in ns; 0: whenever."""
    if "deadline_ms" not in request:
        return 0
    wanted = int(check_tensor(request, "deadline_ms", dtype, 1)[0])
    if not 1 <= wanted <= MAX_DEADLINE_MS:
        raise InputError("deadline_ms", f"is {wanted}", f"1 to {MAX_DEADLINE_MS}")
    return now + wanted * 1_000_000
