"""What a server can do when it never waits for work: requests answered per second by so many at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from numpy.typing import ArrayLike

from clients.aio import AsyncRecommender
from perf.kit.endpoints import Endpoint

WARM_UP_S = 1.0


def capacity(
    server: Endpoint, histories: Sequence[ArrayLike], concurrency: int, seconds: float, top_k: int = 10
) -> tuple[float, list[float]]:
    """Answers per second, and the latency of each in seconds, over one connection. Raises the client's errors."""
    return asyncio.run(_loop(server, histories, concurrency, seconds, top_k))


async def _loop(
    server: Endpoint, histories: Sequence[ArrayLike], concurrency: int, seconds: float, top_k: int
) -> tuple[float, list[float]]:
    begun = time.perf_counter() + WARM_UP_S
    end, numbers, taken = begun + seconds, itertools.count(), list[float]()

    async def ask(recommender: AsyncRecommender) -> None:
        while (sent := time.perf_counter()) < end:
            await recommender.recommend(histories[next(numbers) % len(histories)], top_k)
            if begun <= sent and time.perf_counter() <= end:
                taken.append(time.perf_counter() - sent)

    async with AsyncRecommender(server.grpc_url, model=server.ensemble) as recommender:
        await asyncio.gather(*(ask(recommender) for _ in range(concurrency)))
    return len(taken) / seconds, taken
