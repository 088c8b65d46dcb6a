"""Rankings by a server, so many in flight, once all that they reuse is there."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clients.aio import AsyncRanker
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue

LISTS = 200


class Load(NamedTuple):
    """Answers a second; of their times in ms the median and the P99."""

    rate: float
    p50_ms: float
    p99_ms: float


class Population(NamedTuple):
    """Users, each of so many items drawn at random; candidates of a ranking, drawn from the so many first items."""

    users: int
    history: int
    candidates: int
    popular: int


async def in_flight(url: str, artifact: Path, of: Population, many: int, seconds: float) -> Load:
    """What a server does with so `many` rankings at a time, when all users and lists of candidates have been asked."""
    items, draw = load_catalogue(artifact, load_config(artifact)).item_ids, np.random.default_rng(0)
    users = [draw.choice(items, of.history) for _ in range(of.users)]
    lists = [draw.choice(items[: of.popular], of.candidates, replace=False) for _ in range(LISTS)]
    taken, numbers = list[float](), itertools.count()

    async with AsyncRanker(url) as ranker:

        async def rank(number: int) -> None:
            user = number % of.users
            await ranker.rank(users[user], lists[number % LISTS], 10, user_id=user)

        for number in range(max(of.users, LISTS)):
            await rank(number)
        begun = time.perf_counter()

        async def ask() -> None:
            while (sent := time.perf_counter()) < begun + seconds:
                await rank(next(numbers))
                taken.append(time.perf_counter() - sent)

        await asyncio.gather(*(ask() for _ in range(many)))
        passed = time.perf_counter() - begun
    p50, p99 = 1e3 * np.percentile(taken, [50, 99])
    return Load(len(taken) / passed, float(p50), float(p99))
