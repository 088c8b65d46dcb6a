"""Users who come again to a real server, with a model that is large enough for their prompts to be kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from clients.recommender import Recommendation, Recommender
from deploy.launcher import RunningServer
from tests.deploy.prometheus import scrape, total
from tests.serving.servers import brief_server
from tests.tiny import tiny_artifact, tiny_catalogue

ITEMS, LEVELS = 120, 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    artifact = tiny_artifact(
        tmp_path_factory.mktemp("returning") / "artifact", max_history=200, hidden_size=128,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=320,
    )  # fmt: skip
    with brief_server(artifact, beam_width=32, ensembles=("recommend", "recommend_draft")) as running:
        yield running


def history(items: int, seed: int) -> list[int]:
    """The first so many of a user's items."""
    return np.random.default_rng(seed).choice(tiny_catalogue().item_ids, 300).tolist()[:items]


def reused(server: RunningServer, at_least: float = 0) -> float:
    """Tokens, as Triton says; it is told once a second."""
    end = time.monotonic() + 30
    while True:
        found = total(scrape(server.metrics_url), "genrec_generate_tokens_total", kind="reused")
        if found >= at_least or time.monotonic() > end:
            return found
        time.sleep(0.2)


def equal(got: Recommendation, want: Recommendation) -> None:
    np.testing.assert_array_equal(got.item_ids, want.item_ids)
    np.testing.assert_allclose(got.scores, want.scores, rtol=0, atol=1e-4)


def test_a_named_user_who_comes_again_is_answered_as_if_nobody_was_named(server: RunningServer) -> None:
    before = reused(server)
    with Recommender(server.grpc_url) as recommender:
        for items in (ITEMS, ITEMS + 2, ITEMS + 2):
            asked = history(items, 1)
            equal(recommender.recommend(asked, 10, user_id=7), recommender.recommend(asked, 10))
    want = before + LEVELS * ITEMS + LEVELS * (ITEMS + 2)
    assert reused(server, want) == want


def test_a_history_that_is_longer_than_the_model_reads(server: RunningServer) -> None:
    """Its window moves by 50 items, a quarter of what is read, and not with every item."""
    before = reused(server)
    with Recommender(server.grpc_url) as recommender:
        for items in (230, 232, 251):
            asked = history(items, 2)
            start = 50 if items <= 250 else 100
            equal(recommender.recommend(asked, 10, user_id=8), recommender.recommend(asked[start:], 10))
    want = before + LEVELS * 180
    assert reused(server, want) == want


def test_a_draft_goes_on_behind_what_recommend_has_left(server: RunningServer) -> None:
    before = reused(server)
    with (
        Recommender(server.grpc_url) as recommender,
        Recommender(server.grpc_url, model="recommend_draft") as drafts,
    ):
        for items, asked in (
            (ITEMS, drafts),
            (ITEMS + 2, drafts),
            (ITEMS + 4, recommender),
            (ITEMS + 6, drafts),
        ):
            equal(asked.recommend(history(items, 3), 10, user_id=9), asked.recommend(history(items, 3), 10))
    want = before + LEVELS * (3 * ITEMS + 6)
    assert reused(server, want) == want


def test_many_users_at_once_who_come_again(server: RunningServer) -> None:
    before = reused(server)
    draw = np.random.default_rng(0)
    visits = [(int(user), int(ITEMS + draw.integers(0, 40))) for user in draw.integers(100, 108, 60)]
    with Recommender(server.grpc_url) as recommender, ThreadPoolExecutor(8) as threads:

        def ask(visit: tuple[int, int]) -> tuple[Recommendation, Recommendation]:
            user, items = visit
            asked = history(items, user)
            return recommender.recommend(asked, 10, user_id=user), recommender.recommend(asked, 10)

        for got, want in threads.map(ask, visits):
            equal(got, want)
    assert reused(server, before + 1) > before
