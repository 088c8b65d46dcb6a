"""What the benchmark of recovery takes for away, and for wrong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from clients.errors import Unreachable
from perf.slo.recovery import SteadyLoad


class Client:
    """Answers what it is told to, or fails."""

    def __init__(self) -> None:
        self.answer: list[int] | None = [1, 2]

    async def recommend(self, history: Any) -> Any:
        if self.answer is None:
            raise Unreachable("gone")
        return SimpleNamespace(item_ids=np.array(self.answer))


def test_only_an_ensemble_that_failed_was_away_and_only_until_it_answered() -> None:
    async def run() -> SteadyLoad:
        hit, other = Client(), Client()
        traffic = SteadyLoad({"hit": hit, "other": other}, [np.array([1])])  # type: ignore[dict-item]
        await traffic.learn()
        traffic.disturb()
        await traffic._ask("other", 0)
        hit.answer = None
        await traffic._ask("hit", 0)
        assert not traffic.settled
        hit.answer = [2, 1]
        await traffic._ask("hit", 0)
        assert not traffic.settled, "it answers, and wrongly"
        hit.answer = [1, 2]
        await traffic._ask("hit", 0)
        assert traffic.settled
        return traffic

    traffic = asyncio.run(run())
    assert traffic.away().keys() == {"hit"} and traffic.away()["hit"] > 0
    assert (traffic.wrong, traffic.outcomes) == (1, {"right": 2, "wrong": 1, "Unreachable": 1})
