"""What a benchmark asks of an ensemble: a history, a number of items, and for a ranking its user and candidates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.aio import AsyncRanker
from clients.rank_wire import RANK, RECOMMEND_AND_RANK
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.errors import InputError
from perf.kit.endpoints import Endpoint
from perf.kit.lean import LeanRecommender

RANKING = (RANK, RECOMMEND_AND_RANK)
CANDIDATES = 100


class Candidates:
    """Somebody's retrieval: for each history a user and items, the popular ones more often, always the same."""

    def __init__(self, artifact: Path) -> None:
        catalogue = load_catalogue(artifact, load_config(artifact))
        self._items, self._count = catalogue.item_ids, min(CANDIDATES, len(catalogue.item_ids))
        weights = np.log(catalogue.popularity + 2.0).cumsum()
        self._below = weights / weights[-1]

    def of(self, history: ArrayLike) -> tuple[int, NDArray[np.int64]]:
        """The user, and item ids int64[C]."""
        user = crc32(np.asarray(history, np.int64).tobytes())
        draw, rows = np.random.default_rng(user), dict[int, None]()
        # A pass over the catalogue for each request would load the machine too
        while len(rows) < self._count:
            rows |= dict.fromkeys(np.searchsorted(self._below, draw.random(self._count)).tolist())
        return user, self._items[list(rows)[: self._count]]


class RankSender:
    """Rankings in the place of recommendations, for `perf.slo.replay.Sender`."""

    def __init__(self, client: AsyncRanker, candidates: Candidates, ensemble: str) -> None:
        self._client, self._candidates, self._ensemble = client, candidates, ensemble

    async def recommend(self, history: ArrayLike, top_k: int = 10, *, deadline_ms: int | None = None) -> Any:
        """A ranking of the history's candidates, or of what the generator finds."""
        user, items = self._candidates.of(history)
        if self._ensemble == RANK:
            return await self._client.rank(history, items, top_k, user_id=user, deadline_ms=deadline_ms)
        return await self._client.recommend_and_rank(
            history, len(items), top_k, user_id=user, deadline_ms=deadline_ms
        )


def candidates_for(server: Endpoint) -> Candidates | None:
    """For an ensemble that ranks. Raises InputError where no artifact says what there is to rank."""
    if server.ensemble not in RANKING:
        return None
    if server.artifact is None:
        raise InputError("ensemble", f"is {server.ensemble}, which ranks items", "an artifact beside the URL")
    return Candidates(server.artifact)


@asynccontextmanager
async def sending(server: Endpoint) -> AsyncIterator[RankSender | LeanRecommender]:
    """A client of the server's ensemble."""
    candidates = candidates_for(server)
    if candidates is None:
        async with LeanRecommender(server.grpc_url, server.ensemble) as recommender:
            yield recommender
    else:
        async with AsyncRanker(server.grpc_url) as ranker:
            yield RankSender(ranker, candidates, server.ensemble)


def further_inputs(server: Endpoint) -> Callable[[ArrayLike], dict[str, list[int]]]:
    """What the ensemble is given beside a history and a number of items, by name."""
    candidates = candidates_for(server)
    if candidates is None:
        return lambda _: {}

    def inputs(history: ArrayLike) -> dict[str, list[int]]:
        user, items = candidates.of(history)
        wanted = {"candidates": items.tolist()} if server.ensemble == RANK else {"retrieve": [len(items)]}
        return {"user_id": [user], **wanted}

    return inputs
