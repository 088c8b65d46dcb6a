"""A history with what is known of its events, and candidates, to what an HSTU ranker reads.

Of ratings, times and features a request may leave out what is unknown. Times are seconds of any clock; only differences
are read. Without times all events are of one second.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError, InputError
from genrec.rank.hstu import (
    CODES,
    CONFIG,
    FEATURE,
    ITEM,
    LIMIT,
    MOST_FEATURES,
    RATING,
    RATINGS,
    TIME,
    HstuConfig,
)
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.candidates import read_candidates, read_top_k
from genrec.steps.encode_history import deadline_of, owner_of
from genrec.steps.ticket import Ticket, read_ticket
from genrec.steps.user_prefix import flat, window_start
from genrec.steps.versioned import Versioned


@dataclass(frozen=True)
class _EventTable:
    """One catalogue version: rows of the ranker's tables by catalogue row, `own` int32[n] and `codes` int32[n, L]."""

    catalogue: Catalogue
    own: NDArray[np.int32]
    codes: NDArray[np.int32]


class _Events(NamedTuple):
    """`rows` int32[n] of the catalogue, and of each its rating and seconds since the first; `now` on the same clock."""

    rows: NDArray[np.int32]
    ratings: NDArray[np.int32]
    times: NDArray[np.int32]
    now: int
    dropped: int
    cut: int


class EncodeEvents:
    """As `EncodeCandidates`, in whose place it stands. Tokens are those of `genrec.rank.hstu`.

    Of a candidate, `candidates` has its own row and the seconds at which it is asked for, `codes` its codes' rows.
    """

    def __init__(self, settings: Settings) -> None:
        self._generator = load_config(settings.artifact)
        self._config = HstuConfig.load(settings.artifact / "model" / CONFIG)
        self._trained_on = self._first_version(settings.artifact)
        self._loaded = Versioned(settings, "encode_events", self._load)
        self.close = self._loaded.close

    def _first_version(self, artifact: Path) -> Catalogue:
        """Its rows are the ranker's. Later items have no row of their own, only codes. Raises ArtifactError."""
        catalogue, c = load_catalogue(artifact, self._generator), self._config
        if (len(catalogue), tuple(catalogue.codebook_sizes)) != (c.items, c.codebook_sizes):
            problem = f"is of {c.items} items with codes {c.codebook_sizes}, {CATALOGUE} has {len(catalogue)}"
            raise ArtifactError(
                artifact / "model" / CONFIG, f"{problem} with {catalogue.codebook_sizes}; train it again"
            )
        return catalogue

    def _load(self, folder: Path) -> _EventTable:
        catalogue = load_catalogue(folder, self._generator)
        own = self._trained_on.rows_of(catalogue.item_ids) + 1
        return _EventTable(catalogue, own.astype(np.int32), catalogue.codes + self._config.code_starts)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._encode)

    def _encode(self, request: Tensors) -> Tensors:
        now = time.monotonic_ns()
        first = read_ticket(request, self._generator.max_prompt) if "ticket" in request else None
        version = first.version if first else self._loaded.current
        loaded = self._loaded.of(version)
        rows, prior, left_out = read_candidates(request, loaded.catalogue, first is not None)
        top_k = read_top_k(request)
        events = read_events(request, loaded.catalogue, self._config.max_history)
        features = read_features(request, self._config)
        tokens = self._tokens(loaded, events, features)
        if not len(rows):  # a retrieval that found nothing: the answer is empty
            tokens = tokens[:0]
        deadline = first.deadline_ns if first else deadline_of(request, now)
        if not len(tokens) and "candidate_scores" not in request:  # what else is there to go by
            prior = loaded.catalogue.popularity[rows].astype(np.float32)
        asked = np.stack((loaded.own[rows], np.full(len(rows), events.now, np.int32)), 1)
        return {
            "tokens": flat(tokens),
            "ticket": Ticket(top_k, len(tokens), deadline, events.dropped, events.cut, version).tensor(),
            "owner": owner_of(request),
            "candidates": flat(asked),
            "codes": flat(loaded.codes[rows]),
            "item_ids": loaded.catalogue.item_ids[rows][None],
            "prior": prior[None],
            "left_out": np.array([[left_out]], np.int32),
        }

    def _tokens(self, loaded: _EventTable, events: _Events, features: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[U, token_size]."""
        tokens = np.zeros((len(features) + len(events.rows), self._config.token_size), np.int32)
        tokens[: len(features), FEATURE] = features
        of_events = tokens[len(features) :]
        of_events[:, ITEM], of_events[:, CODES:] = loaded.own[events.rows], loaded.codes[events.rows]
        of_events[:, RATING], of_events[:, TIME] = events.ratings, events.times
        return tokens


def read_events(request: Tensors, catalogue: Catalogue, most: int) -> _Events:
    """The newest `most` of a history, or fewer, as its window moves in steps. Raises InputError."""
    history = catalogue.rows_of(check_tensor(request, "history", np.int64))
    known = np.flatnonzero(history >= 0)
    kept = known[window_start(len(known), most) :]
    ratings, times = _ratings(request, len(history)), _times(request, len(history))
    now = _now(request, times)
    begin = int(times[kept[0]]) if len(kept) else now
    if now - begin >= LIMIT:
        raise InputError("times", f"span {now - begin} seconds", f"at most {LIMIT - 1}, `now` included")
    since = (times[kept] - begin).astype(np.int32)
    return _Events(
        history[kept], ratings[kept], since, now - begin, len(history) - len(known), len(known) - len(kept)
    )


def read_features(request: Tensors, config: HstuConfig) -> NDArray[np.int32]:
    """int32[f]. Raises InputError."""
    if "features" not in request:
        return np.zeros(0, np.int32)
    features = check_tensor(request, "features", np.int32, most=MOST_FEATURES)
    if outside := features[(features < 1) | (features > config.features)].tolist():
        raise InputError("features", f"has {outside[0]}", f"1 to {config.features}, a number per known value")
    return features


def _ratings(request: Tensors, events: int) -> NDArray[np.int32]:
    if "ratings" not in request:
        return np.zeros(events, np.int32)
    ratings = check_tensor(request, "ratings", np.int32, events)
    if outside := ratings[(ratings < 0) | (ratings > RATINGS)].tolist():
        raise InputError("ratings", f"has {outside[0]}", f"1 to {RATINGS}, 0 where it is unknown")
    return ratings


def _times(request: Tensors, events: int) -> NDArray[np.int64]:
    if "times" not in request:
        return np.zeros(events, np.int64)
    times = check_tensor(request, "times", np.int64, events)
    if (back := np.flatnonzero(times[1:] < times[:-1])).size:
        place = int(back[0])
        raise InputError("times", f"has {times[place + 1]} after {times[place]}", "seconds, oldest first")
    return times


def _now(request: Tensors, times: NDArray[np.int64]) -> int:
    """When the ranking is asked for; without `now`, at the newest event."""
    newest = int(times[-1]) if len(times) else 0
    if "now" not in request:
        return newest
    now = int(check_tensor(request, "now", np.int64, 1)[0])
    if "times" not in request:
        raise InputError("now", "is given without times", "both, or neither")
    if len(times) and now < newest:
        raise InputError("now", f"is {now}", f"at least {newest}, the newest of times")
    return now
