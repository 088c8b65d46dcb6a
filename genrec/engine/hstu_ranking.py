"""Whole rankings of an HSTU ranker: a user's KV, then candidates over it."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import engines_folder, load_config
from genrec.engine.interface import Array, HstuPasses
from genrec.engine.load import load_layout
from genrec.engine.user_entry import padded
from genrec.errors import InputError
from genrec.rank.hstu import (
    CODES,
    CONFIG,
    FEATURE,
    ITEM,
    RATING,
    HstuConfig,
    Marks,
    candidate_marks,
    user_marks,
)
from genrec.settings import Settings
from genrec.target import ranking_targets, target_of

READ = (ITEM, RATING, FEATURE)  # columns of a user's token that the graph has besides codes


class HstuRequest(NamedTuple):
    """A user's tokens int32[U, token_size], and candidates int32[C, 1 + L] asked for at `now`: rows of tables."""

    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    now: int


class HstuExecutor:
    """One per process."""

    def __init__(self, passes: HstuPasses, config: HstuConfig) -> None:
        self._passes, self._config = passes, config
        self._nobody = self._memory(1)

    def scores(self, request: HstuRequest) -> NDArray[np.float32]:
        """float32[C]: logits of the first task, a rating of 4 or more."""
        kv = self._memory(padded(len(request.tokens)))
        self._fill(request.tokens, kv)
        marks = _padded(candidate_marks(self._config, request.tokens, request.now), kv[0].shape[2])
        return self._passes.logits(request.candidates.astype(np.int64), marks, kv)[:, 0]

    def _fill(self, tokens: NDArray[np.int32], kv: list[Array]) -> None:
        """All of a user's tokens. Equal shapes are faster, so what is padded is computed too, and seen by nobody."""
        span = kv[0].shape[2]
        given = np.zeros((span, len(READ) + self._config.token_size - CODES), np.int64)
        given[: len(tokens)] = self._read(tokens)
        marks = _padded(user_marks(self._config, tokens, 0), span, span)
        self._passes.user(given, marks, np.zeros((3, span, 1), np.int64), self._nobody, kv)

    def _read(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.concatenate((tokens[:, READ], tokens[:, CODES:]), 1)

    def _memory(self, span: int) -> list[Array]:
        c = self._config
        shape = (1, c.heads, span, c.hidden_size // c.heads)
        return [np.zeros(shape, np.float32) for _ in range(2 * c.layers)]


def _padded(marks: Marks, *shape: int) -> NDArray[np.int64]:
    """int64[3, *shape], 0 where there is no token."""
    whole = np.zeros((3, *shape), np.int64)
    whole[(slice(None), *map(slice, marks.seen.shape))] = marks.array()
    return whole


def load_hstu_executor(settings: Settings) -> HstuExecutor:
    """Of the artifact's HSTU ranker. Raises InputError, ArtifactError."""
    target = target_of(settings.target)
    if not target.ranker:
        raise InputError("target", f"{target.name} has no ranker", ", ".join(ranking_targets()))
    kv_type = load_layout(settings, load_config(settings.artifact)).kv_type
    folder = engines_folder(settings.artifact, settings.target)
    passes = import_module(target.ranker).load_hstu(folder, kv_type, settings.threads)
    return HstuExecutor(passes, HstuConfig.load(settings.artifact / "model" / CONFIG))
