"""What a server can do when it never waits for work: requests answered per second by so many at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from numpy.typing import ArrayLike

from clients.errors import Overloaded
from perf.kit.asking import RankSender, sending
from perf.kit.endpoints import Endpoint
from perf.kit.lean import LeanRecommender

WARM_UP_S = 1.0


def capacity(
    server: Endpoint, histories: Sequence[ArrayLike], concurrency: int, seconds: float, top_k: int = 10
) -> tuple[float, list[float]]:
    """Answers per second, and the latency of each in seconds, over one connection; what is refused is asked
    again. Raises the client's other errors."""
    return asyncio.run(_loop(server, histories, concurrency, seconds, top_k))


async def _loop(
    server: Endpoint, histories: Sequence[ArrayLike], concurrency: int, seconds: float, top_k: int
) -> tuple[float, list[float]]:
    begun = time.perf_counter() + WARM_UP_S
    end, numbers, taken, answered = begun + seconds, itertools.count(), list[float](), 0

    async def ask(recommender: RankSender | LeanRecommender) -> None:
        nonlocal answered
        while (sent := time.perf_counter()) < end:
            try:
                await recommender.recommend(histories[next(numbers) % len(histories)], top_k)
            except Overloaded:  # a router before the server lets fewer through, for a moment
                continue
            now = time.perf_counter()
            # Whenever it was sent: as many are under way at the end as at the beginning
            answered += begun <= now <= end
            if begun <= sent and now <= end:
                taken.append(now - sent)

    async with sending(server) as recommender:
        await asyncio.gather(*(ask(recommender) for _ in range(concurrency)))
    return answered / seconds, taken
