"""An HSTU ranker behind a real tritonserver: its scores are the torch module's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import main
from clients.aio import AsyncRanker
from clients.errors import BadRequest
from clients.rank_wire import Ranking
from clients.ranker import Ranker
from deploy.launcher import RunningServer
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu
from tests.oracles.hstu_asked import Asked, logits_of
from tests.serving.servers import brief_server


@pytest.fixture(scope="module")
def ranking(tiny_hstu: Path) -> Iterator[RunningServer]:
    with brief_server(tiny_hstu, beam_width=16, ensembles=("rank", "recommend_and_rank")) as server:
        yield server


@pytest.fixture(scope="module")
def asked(tiny_hstu: Path) -> dict[str, Any]:
    """Arguments of a client."""
    ids = Catalogue.load(tiny_hstu / "catalogue.parquet").item_ids
    times = [10, 10, 500, 900, 5000, 10**6, 10**7]
    known = {"ratings": [1, 5, 2, 4, 3, 5, 1], "times": times, "now": 10**7 + 60, "features": [1, 4]}
    return {"history": ids[:7].tolist(), "candidates": ids[40:60].tolist(), "top_k": 20, **known}


@pytest.fixture(scope="module")
def want(tiny_hstu: Path, asked: dict[str, Any]) -> dict[int, float]:
    """Item -> score by torch."""
    given = Asked(range(7), asked["ratings"], asked["times"], asked["now"], asked["features"])
    found = logits_of(load_hstu(tiny_hstu / "model"), given, range(40, 60))[:, 0]
    return dict(zip(asked["candidates"], found.tolist(), strict=True))


def check(found: Ranking, want: dict[int, float]) -> None:
    assert sorted(found.item_ids) == sorted(want) and (np.diff(found.scores) <= 0).all()
    np.testing.assert_allclose(found.scores, [want[item] for item in found.item_ids], atol=1e-4)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_scores_are_torch_s(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float], protocol: Any
) -> None:
    with Ranker(ranking.grpc_url if protocol == "grpc" else ranking.http_url, protocol) as ranker:
        check(ranker.rank(**asked), want)
        unknown = ranker.rank(asked["history"], asked["candidates"], 20)
    assert max(abs(want[i] - s) for i, s in zip(unknown.item_ids, unknown.scores, strict=True)) > 0.01


async def _ask(url: str, asked: dict[str, Any]) -> Ranking:
    async with AsyncRanker(url) as ranker:
        return await ranker.rank(**asked)


def test_the_client_for_asyncio_and_the_command_line_ask_the_same(
    ranking: RunningServer, tiny_hstu: Path, asked: dict[str, Any], want: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    check(asyncio.run(_ask(ranking.grpc_url, asked)), want)
    given = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in asked.items()]
    best = max(want, key=lambda item: want[item])
    for where in ([], ["--url", ranking.grpc_url]):
        assert main.main(["rank", str(tiny_hstu), *given, *where]) == 0
        assert f"{want[best]:8.3f}  item {best}" in capsys.readouterr().out


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_behind_a_retrieval_too(ranking: RunningServer, asked: dict[str, Any]) -> None:
    known = {name: value for name, value in asked.items() if name not in ("candidates", "top_k")}
    with Ranker(ranking.grpc_url) as ranker:
        found = ranker.recommend_and_rank(retrieve=12, top_k=12, **known)
        again = ranker.rank(candidates=found.item_ids, top_k=12, **known)
    assert found.item_ids.tolist() == again.item_ids.tolist() and len(found.item_ids) == 12
    np.testing.assert_allclose(found.scores, again.scores, atol=1e-5)


def test_a_wrong_request_is_told_what_is_wrong(ranking: RunningServer, asked: dict[str, Any]) -> None:
    with Ranker(ranking.grpc_url) as ranker, pytest.raises(BadRequest, match=r"ratings: has 6 .*1 to 5"):
        ranker.rank(**{**asked, "ratings": [6] * 7})
