"""Rankings by the two HSTU rankers, where a server is asked the same of both."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import main
from clients.aio import AsyncRanker
from clients.rank_wire import Ranking
from clients.ranker import Ranker
from deploy.launcher import RunningServer
from tests.deploy.prometheus import scrape, total
from tests.serving.servers import brief_server


def ranking_server(artifact: Path, **options: Any) -> AbstractContextManager[RunningServer]:
    """Every prefix is computed ahead, and waits for its ranking for ten minutes."""
    ahead = {"pre_infer_risk": 0, "pre_infer_share": 100, "lease_ms": 600_000, "pool_user_mb": 1}
    names = ("recommend", "rank", "recommend_and_rank", "pre_infer")
    return brief_server(artifact, beam_width=16, ensembles=names, **ahead, **options)


def check(found: Ranking, want: dict[int, float]) -> None:
    """All items of `want`, best first, with its scores."""
    assert sorted(found.item_ids) == sorted(want) and (np.diff(found.scores) <= 0).all()
    np.testing.assert_allclose(found.scores, [want[item] for item in found.item_ids], atol=1e-4)


def check_commands(
    artifact: Path,
    url: str,
    asked: dict[str, Any],
    want: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`genrec rank` prints the best item of `want`, by itself and by the server."""
    given = [f"--{name.replace('_', '-')}={text(value)}" for name, value in asked.items()]
    best = max(want, key=lambda item: want[item])
    for where in ([], ["--url", url]):
        assert main.main(["rank", str(artifact), *given, *where]) == 0
        assert f"{want[best]:8.3f}  item {best}" in capsys.readouterr().out


def text(value: Any) -> str:
    """As an option of the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def check_behind_a_retrieval(url: str, asked: dict[str, Any]) -> None:
    """`recommend_and_rank` answers as `rank` does of what it retrieved."""
    known = {name: value for name, value in asked.items() if name not in ("candidates", "top_k")}
    with Ranker(url) as ranker:
        found = ranker.recommend_and_rank(retrieve=12, top_k=12, **known)
        again = ranker.rank(candidates=found.item_ids, top_k=12, **known)
    assert found.item_ids.tolist() == again.item_ids.tolist() and len(found.item_ids) == 12
    np.testing.assert_allclose(found.scores, again.scores, atol=1e-5)


def rank_many(
    url: str, asked: list[tuple[list[int], list[int]]], want: list[Any], many: int, top_k: int
) -> None:
    """So many rankings at once, of users some of whom are there, some new, some nobody; answers are those wanted."""

    async def ask() -> None:
        async with AsyncRanker(url) as ranker:

            async def one(n: int) -> None:
                (history, candidates), answer = asked[n % len(asked)], want[n % len(asked)]
                user = (None, n % len(asked), 1000 + n)[n % 3]
                found = await ranker.rank(history, candidates, top_k, user_id=user)
                np.testing.assert_array_equal(found.item_ids, answer["item_ids"][0])
                np.testing.assert_allclose(found.scores, answer["scores"][0], atol=2e-5)

            await asyncio.gather(*(one(n) for n in range(many)))

    asyncio.run(ask())


def with_others(server: RunningServer) -> float:
    """Rankings that were not the first of their pass."""
    seen, name = scrape(server.metrics_url), "genrec_batch_requests"
    rankings, passes = (total(seen, f"{name}_{of}", model="score_candidates") for of in ("sum", "count"))
    return rankings - passes
