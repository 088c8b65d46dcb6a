"""Cascades whose retrieval finds nothing, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from clients import cascade as stages
from clients.cascade import AsyncCascade, Candidates, Cascade, CascadeRequest
from clients.errors import BadRequest


@pytest.mark.parametrize("kind", [Cascade, AsyncCascade])
@pytest.mark.parametrize("empties", ["retrieve", "pre_process"])
def test_where_nothing_is_left_to_rank_the_answer_is_empty(kind: type, empties: str) -> None:
    """As that of `recommend` is for who has seen the whole catalogue. No candidates are no ranking's request."""

    class Asked:
        def rank(self, *_: Any, **__: Any) -> Any:
            raise BadRequest("candidates: is empty (accepted: 1 to 512 item ids)")

        pre_infer = rank

    def some(_: CascadeRequest) -> Candidates:
        return Candidates([1, 2], [-1.0, -2.0])

    def none(*_: Any) -> Candidates:
        return Candidates(np.zeros(0, np.int64), np.zeros(0, np.float32))

    def later(work: Any) -> Any:
        async def run(*given: Any) -> Any:
            return work(*given)

        return run

    wrapped = later if kind is AsyncCascade else lambda work: work
    first, second = (none, None) if empties == "retrieve" else (some, none)
    cascade = kind(Asked(), wrapped(first), second and wrapped(second))
    asked = cascade.ask([3, 4], 7)
    answer = asyncio.run(asked) if kind is AsyncCascade else asked
    assert not len(answer.ranking.item_ids) and not len(answer.ranking.scores)
    assert answer.ranking.by == "popularity" and stages.RANKING not in answer.ms
