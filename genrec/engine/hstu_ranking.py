"""Whole rankings of an HSTU ranker: a user's KV from the pool or computed, then candidates over it.

An entry of the pool is found by all that it was made of: items, ratings, seconds since the first event, and features.
It holds 2N tensors float32[1, H, span, D]: k, v of layer 0, then of layer 1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, HstuPasses
from genrec.engine.load import load_layout
from genrec.engine.ranking import Reuse
from genrec.engine.user_entry import copy_past, held, padded
from genrec.errors import InputError
from genrec.pool.keys import owner_key, user_words
from genrec.pool.pool import Pool
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
from genrec.rank.hstu_weights import HstuWeights
from genrec.settings import Settings
from genrec.target import ranking_targets, target_of

READ = (ITEM, RATING, FEATURE)  # columns of a user's token that the graph has besides codes


class HstuRequest(NamedTuple):
    """A user's tokens int32[U, token_size], and candidates int32[C, 1 + L] asked for at `now`: rows of tables."""

    owner: int | None  # whose history it is; None: nobody's in particular
    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    now: int


class HstuExecutor:
    """One per process. Without a pool everything is computed."""

    def __init__(
        self, passes: HstuPasses, config: HstuConfig, model: str = "", pool: Pool | None = None
    ) -> None:
        """`model` names the weights that KV comes from."""
        self._passes, self._config, self._model, self._pool = passes, config, model, pool
        self._nobody = self._entry(1)

    def scores(self, request: HstuRequest) -> tuple[NDArray[np.float32], Reuse]:
        """float32[C], logits of the first task, a rating of 4 or more; and what it took."""
        with self._user(request) as (kv, past):
            marks = _padded(candidate_marks(self._config, request.tokens, request.now), kv[0].shape[2])
            logits = self._passes.logits(request.candidates.astype(np.int64), marks, kv)
        computed = len(request.tokens) - past
        return logits[:, 0], Reuse(past, 0, computed + len(request.candidates), self._copied(past, computed))

    def rehearse(self) -> None:
        """Run both graphs once, and keep nothing: they are slow the first time."""
        c = self._config
        tokens, candidates = (
            np.zeros((1, size), np.int32) for size in (c.token_size, c.token_size - CODES + 1)
        )
        HstuExecutor(self._passes, c).scores(HstuRequest(None, tokens, candidates, 0))

    @contextmanager
    def _user(self, request: HstuRequest) -> Iterator[tuple[list[Array], int]]:
        """The user's KV, and of how many tokens it was there; an entry stays in its place until this ends."""
        pool, tokens = self._pool, request.tokens
        if pool is None:
            yield self._computed(tokens, self._entry(padded(len(tokens)))), 0
            return
        hashes = user_words(
            pool.secret, self._named(tokens), "hstu", request.owner, tokens.ravel(), self._config.token_size
        )
        size, owner = self._bytes(padded(len(tokens))), owner_key(pool.secret, request.owner)
        with held(pool, hashes, 1, len(tokens), size, owner, keep=True) as (found, writing):
            there = self._entry(found.span, found.memory) if found else []
            if found and found.tokens == len(tokens):
                yield there, len(tokens)
                return
            kv = self._entry(padded(len(tokens)), writing.memory if writing else None)
            yield (
                (self._extended(tokens, there, found.tokens, kv) if found else self._computed(tokens, kv)),
                (found.tokens if found else 0),
            )

    def _named(self, tokens: NDArray[np.int32]) -> str:
        """Features see each other, so an entry with others of them agrees in nothing: they are a part of its name."""
        features = tokens[tokens[:, FEATURE] > 0, FEATURE]
        return f"{self._model}:{','.join(map(str, features))}"

    def _computed(self, tokens: NDArray[np.int32], kv: list[Array]) -> list[Array]:
        """All of a user's tokens. Equal shapes are faster, so what is padded is computed too, and seen by nobody."""
        span = kv[0].shape[2]
        given = np.zeros((span, len(READ) + self._config.token_size - CODES), np.int64)
        given[: len(tokens)] = self._read(tokens)
        marks = _padded(user_marks(self._config, tokens, 0), span, span)
        self._passes.user(given, marks, np.zeros((3, span, 1), np.int64), self._nobody, kv)
        return kv

    def _extended(
        self, tokens: NDArray[np.int32], found: list[Array], past: int, kv: list[Array]
    ) -> list[Array]:
        """An entry that agrees in its first `past` tokens, with the newest behind them."""
        copy_past(found, kv, past)
        marks, new = user_marks(self._config, tokens, past).array(), len(tokens) - past
        before = np.zeros((3, new, found[0].shape[2]), np.int64)
        before[:, :, :past] = marks[:, :, :past]
        made = [np.empty((*each.shape[:2], new, each.shape[3]), np.float32) for each in kv]
        own = np.ascontiguousarray(marks[:, :, past:])
        self._passes.user(self._read(tokens[past:]).astype(np.int64), own, before, found, made)
        for whole, newest in zip(kv, made, strict=True):
            whole[:, :, past : len(tokens)] = newest
            whole[:, :, len(tokens) :] = 0  # memory of the pool is as others left it, and 0 times NaN is NaN
        return kv

    def _read(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.concatenate((tokens[:, READ], tokens[:, CODES:]), 1)

    def _entry(self, span: int, memory: Array | None = None) -> list[Array]:
        """2N tensors in `memory` uint8[_bytes(span)], or in zeros."""
        c = self._config
        memory = np.zeros(self._bytes(span), np.uint8) if memory is None else memory[: self._bytes(span)]
        shape = (2 * c.layers, 1, c.heads, span, c.hidden_size // c.heads)
        return list(memory.view(np.float32).reshape(shape))

    def _bytes(self, span: int) -> int:
        return 2 * self._config.layers * self._config.hidden_size * span * np.dtype(np.float32).itemsize

    def _copied(self, past: int, computed: int) -> int:
        """Bytes of an entry that was extended."""
        return self._bytes(past) if past and computed else 0


def _padded(marks: Marks, *shape: int) -> NDArray[np.int64]:
    """int64[3, *shape], 0 where there is no token."""
    whole = np.zeros((3, *shape), np.int64)
    whole[(slice(None), *map(slice, marks.seen.shape))] = marks.array()
    return whole


def load_hstu_executors(settings: Settings) -> Callable[[HstuWeights], HstuExecutor]:
    """What makes executors of weights of the artifact's HSTU ranker; they share a pool, where KV of one is not found by
    another. Raises InputError, ArtifactError, as what it returns does.
    """
    target, artifact = target_of(settings.target), settings.artifact
    if not target.ranker:
        raise InputError("target", f"{target.name} has no ranker", ", ".join(ranking_targets()))
    kv_type = load_layout(settings, load_config(artifact)).kv_type
    folder = engine_of(artifact, settings.target)
    passes = import_module(target.ranker).load_hstu(folder, kv_type, settings.threads)
    config = HstuConfig.load(artifact / "model" / CONFIG)
    pool = Pool(settings.pool) if settings.pool else None
    return lambda weights: HstuExecutor(passes(weights), config, weights.name, pool)
