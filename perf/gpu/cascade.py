"""`recommend_and_rank` on a GPU beside its two halves: what it is worth that a history is computed once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clients.rank_wire import Ranking
from clients.ranker import Ranker
from clients.recommender import Recommender
from perf.kit.turns import order

ROUNDS, WARM_UPS, TOP_K = 40, 5, 10


def cascade(url: str, items: NDArray[np.int64], history: int, candidates: int) -> dict[str, dict[str, float]]:
    """Per way to ask: the P50 in ms, and how many of the user's tokens a ranking found there. One request at a time.

    Every request has a history of its own, so whoever ranks it alone computes it. All items' KV is there.
    """
    draw = np.random.default_rng(0)
    with Ranker(url) as ranker, Recommender(url) as recommender:
        for part in np.array_split(items, -(-len(items) // candidates)):
            ranker.rank(draw.choice(items, history), part, TOP_K)

        def rank() -> Ranking:
            return ranker.rank(
                draw.choice(items, history), draw.choice(items, candidates, replace=False), TOP_K
            )

        ways: dict[str, Callable[[], object]] = {
            "recommend": lambda: recommender.recommend(draw.choice(items, history), candidates),
            "rank": rank,
            "recommend_and_rank": lambda: ranker.recommend_and_rank(
                draw.choice(items, history), candidates, TOP_K
            ),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        reused: dict[str, int] = dict.fromkeys(ways, 0)
        for number in range(WARM_UPS + ROUNDS):
            for way in order([*ways], number):
                begun = time.perf_counter()
                answer = ways[way]()
                taken[way].append(1e3 * (time.perf_counter() - begun))
                reused[way] = answer.user_reused if isinstance(answer, Ranking) else 0
    return {
        way: {"p50_ms": statistics.median(each[WARM_UPS:]), "user_reused": reused[way]}
        for way, each in taken.items()
    }
