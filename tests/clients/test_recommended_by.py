"""Retrieval by the generator, of a server that may not be asked for as many items as are usual."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clients.cascade import CascadeRequest, recommended_by
from clients.errors import BadRequest
from clients.recommender import Recommender
from clients.wire import Recommendation
from deploy.launcher import RunningServer

WIDTH = 32  # of the session's server


class Told(Recommender):
    """It tells how many were asked for, and its server's catalogue has the version it says."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[int] = []
        self.version = 1

    def recommend(self, history: Any, top_k: int = 10, **more: Any) -> Recommendation:
        self.asked.append(top_k)
        return replace(super().recommend(history, top_k, **more), catalogue_version=self.version)


@pytest.mark.serving
def test_where_nobody_says_how_many_as_many_are_found_as_may(server: RunningServer, items: list[int]) -> None:
    request = CascadeRequest(items[:4], 8)
    with Recommender(server.grpc_url) as plain, Told(server.grpc_url) as recommender:
        best = plain.recommend(items[:4], WIDTH, exclude_history=True).item_ids.tolist()
        retrieve = recommended_by(recommender)
        for version, wanted in ((1, [100, WIDTH]), (1, [WIDTH]), (2, [WIDTH]), (2, [100, WIDTH])):
            recommender.version, recommender.asked = version, []
            assert list(retrieve(request).item_ids) == best and recommender.asked == wanted
        with pytest.raises(BadRequest, match=f"top_k: is {WIDTH + 1} "):
            recommended_by(recommender, WIDTH + 1)(request)
