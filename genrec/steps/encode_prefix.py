"""A history to the prefix that its ranking will begin with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.rank.options import ONLY_USER
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.encode_history import deadline_of, owner_of
from genrec.steps.ticket import Ticket
from genrec.steps.user_prefix import flat, read_prefix, tokens_of
from genrec.steps.versioned import Versioned


@dataclass(frozen=True)
class _PrefixTable:
    """One catalogue version: `tokens` int32[n, L] of its items."""

    catalogue: Catalogue
    tokens: NDArray[np.int32]


class EncodePrefix:
    """history, user_id, and when the ranking is due -> tokens, ticket, owner, and the plan to rank nothing.

    The first step of `pre_infer`. What it reads of a history is what `encode_candidates` will read of the same one.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._loaded = Versioned(settings, "encode_prefix", self._load)
        self.close = self._loaded.close

    def _load(self, folder: Path) -> _PrefixTable:
        catalogue = load_catalogue(folder, self._config)
        catalogue.rows_of([])  # sorts the ids, which no request should wait for
        return _PrefixTable(catalogue, tokens_of(catalogue, self._config))

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._encode)

    def _encode(self, request: Tensors) -> Tensors:
        now, version = time.monotonic_ns(), self._loaded.current
        loaded = self._loaded.of(version)
        check_tensor(request, "user_id", np.int64, 1)  # without a name a ranking would not be known as his
        deadline = deadline_of(request, now, np.int64)
        prefix = read_prefix(request, loaded.catalogue, self._config)
        length = len(prefix.rows) * self._config.levels
        return {
            "tokens": flat(loaded.tokens[prefix.rows]),
            "ticket": Ticket(1, length, deadline, prefix.dropped, prefix.cut, version).tensor(),
            "owner": owner_of(request),
            "plan": np.array([[ONLY_USER, 1, 0]]),
        }
