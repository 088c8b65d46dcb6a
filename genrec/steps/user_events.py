"""What an HSTU ranker reads of a user: the same functions for the ranking and for what is computed ahead of it.

Of ratings, times and features a request may leave out what is unknown. Times are seconds of any clock; only differences
are read. Without times all events are of one second. A ranker of the next item reads neither ratings nor features.
"""

from __future__ import annotations

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
from genrec.manifest import anew
from genrec.models.prompt import window_start
from genrec.rank.hstu import (
    CODES,
    FEATURE,
    ITEM,
    MOST_FEATURES,
    RATING,
    TIME,
    clock_of,
)
from genrec.rank.kinds import chosen_hstu
from genrec.settings import Settings
from genrec.steps import Tensors, check_tensor
from genrec.steps.known_features import KnownFeatures
from genrec.steps.known_users import KnownUsers
from genrec.steps.user_prefix import refuse_events
from genrec.steps.versioned import Versioned
from genrec.words import command


@dataclass(frozen=True)
class EventTable:
    """One catalogue version: rows of the ranker's tables by catalogue row, `own` int32[n] and `codes` int32[n, L]."""

    catalogue: Catalogue
    own: NDArray[np.int32]
    codes: NDArray[np.int32]


class UserEvents(NamedTuple):
    """`tokens` int32[U, token_size], those of `genrec.rank.hstu`. `now` counts from the first event, as they do."""

    tokens: NDArray[np.int32]
    now: int
    dropped: int
    cut: int


class EventReader:
    """The catalogue as the ranker's tables have it, by version, and users of requests."""

    def __init__(self, settings: Settings, step: str) -> None:
        """`step` is the one that reads. Raises ArtifactError."""
        self.generator = load_config(settings.artifact, settings.target)
        self.config = chosen_hstu(settings.artifact, settings.ranker)
        self._users, self._known = KnownUsers(settings.artifact), KnownFeatures(settings.artifact)
        self._also = [name for name in ("times", "ratings") if name not in self.config.kind.refuses]
        self._trained_on = self._first_version(settings.artifact)
        self.loaded = Versioned(settings, step, self._load)

    def _first_version(self, artifact: Path) -> Catalogue:
        """Its rows are the ranker's. Later items have no row of their own, only codes. Raises ArtifactError."""
        catalogue, c = load_catalogue(artifact, self.generator), self.config
        if (len(catalogue), tuple(catalogue.codebook_sizes)) != (c.items, c.codebook_sizes):
            problem = f"is of {c.items} items with codes {c.codebook_sizes}, {CATALOGUE} has {len(catalogue)}"
            made = f"{anew(artifact, c.kind.name)}, then {command('export', artifact)}"
            raise ArtifactError(
                artifact / "onnx" / c.kind.exported, f"{problem} with {catalogue.codebook_sizes}{made}"
            )
        return catalogue

    def _load(self, folder: Path) -> EventTable:
        catalogue = load_catalogue(folder, self.generator)
        catalogue.rows_of([])  # makes its table of ids, which no request should wait for
        own = self._trained_on.rows_of(catalogue.item_ids) + 1
        return EventTable(catalogue, own.astype(np.int32), catalogue.codes + self.config.code_starts)

    def user(self, request: Tensors, table: EventTable) -> UserEvents:
        """The newest `max_history` of a history, or fewer, as its window moves in steps. Raises InputError."""
        refuse_events(request, self.config.kind.refuses, "items and times alone")
        named = "history" not in request
        request = self._users.complete(request, self._also)
        if named and self.config.features and "features" not in request:
            features = self._known.of(int(request["user_id"].reshape(-1)[0]))
            request = request | {"features": features[None]}
        history = table.catalogue.rows_of(check_tensor(request, "history", np.int64))
        known = np.flatnonzero(history >= 0)
        kept = known[window_start(len(known), self.config.max_history) :]
        ratings, times = _ratings(request, len(history), self.config.ratings), _times(request, len(history))
        now = _now(request, times)
        begin = int(clock_of(int(times[kept[0]]) if len(kept) else now, now))
        features, rows = self._features(request), history[kept]
        tokens = np.zeros((len(features) + len(rows), self.config.token_size), np.int32)
        tokens[: len(features), FEATURE] = features
        events = tokens[len(features) :]
        events[:, ITEM], events[:, CODES:] = table.own[rows], table.codes[rows]
        events[:, RATING], events[:, TIME] = ratings[kept], np.maximum(times[kept], begin) - begin
        return UserEvents(tokens, now - begin, len(history) - len(known), len(known) - len(kept))

    def _features(self, request: Tensors) -> NDArray[np.int32]:
        if "features" not in request:
            return np.zeros(0, np.int32)
        features, most = check_tensor(request, "features", np.int32, most=MOST_FEATURES), self.config.features
        if outside := features[(features < 1) | (features > most)].tolist():
            raise InputError("features", f"has {outside[0]}", f"1 to {most}, a number per known value")
        self._known.check_once(features.tolist())
        return features


def _ratings(request: Tensors, events: int, most: int) -> NDArray[np.int32]:
    if "ratings" not in request:
        return np.zeros(events, np.int32)
    ratings = check_tensor(request, "ratings", np.int32, events)
    if outside := ratings[(ratings < 0) | (ratings > most)].tolist():
        raise InputError("ratings", f"has {outside[0]}", f"1 to {most}, 0 where it is unknown")
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
        raise InputError("now", "is given without times", "beside times alone")
    if len(times) and now < newest:
        raise InputError("now", f"is {now}", f"at least {newest}, the newest of times")
    return now
