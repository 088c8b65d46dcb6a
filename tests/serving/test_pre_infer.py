"""Prefixes computed ahead by a real tritonserver: found by rankings, and whoever computes them may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from clients.ranker import Ranker
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.report import ADMITTED, READY, PreInferReport
from tests.deploy.prometheus import scrape, total
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server

WIDTH, TOP_K, L = 16, 8, 3


@pytest.fixture(scope="module")
def relay(tiny_ranker: Path) -> Iterator[RunningServer]:
    """Every prefix is computed ahead, and waits for its ranking for a minute."""
    given: dict[str, Any] = {
        "pool_user_mb": 4, "pool_item_mb": 4, "pre_infer_risk": 0, "pre_infer_share": 100, "lease_ms": 60_000,
    }  # fmt: skip
    names = ("recommend", "rank", "pre_infer")
    with brief_server(tiny_ranker, beam_width=WIDTH, ensembles=names, probe_every_s=0.5, **given) as server:
        yield server


def ahead(server: RunningServer, history: list[int], user: int, **more: int) -> PreInferReport:
    inputs = []
    for name, values in {"history": history, "user_id": [user], **{k: [v] for k, v in more.items()}}.items():
        inputs.append(grpc.InferInput(name, [1, len(values)], "INT64"))
        inputs[-1].set_data_from_numpy(np.array([values], np.int64))
    with grpc.InferenceServerClient(server.grpc_url) as client:
        found = client.infer("pre_infer", inputs).as_numpy("report")
    return PreInferReport(*found[0].tolist())


def test_a_ranking_finds_what_was_computed_ahead_of_it(
    relay: RunningServer, tiny_ranker: Path, items: list[int]
) -> None:
    history, asked = items[:14], items[60:100]
    assert ahead(relay, history, 1, deadline_ms=60_000) == PreInferReport(ADMITTED, 14 * L, 0, 0)
    until(lambda: ahead(relay, history, 1).outcome == READY)
    with Ranker(relay.grpc_url) as ranker:
        found = ranker.rank(history, asked, TOP_K, user_id=1)
    assert found.user_reused == 14 * L
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        (want,) = local.rank([(history, asked)], TOP_K)
    assert isinstance(want, dict)
    np.testing.assert_array_equal(found.item_ids, want["item_ids"][0])
    np.testing.assert_allclose(found.scores, want["scores"][0], atol=1e-5)


def test_what_recommend_computed_is_ready(relay: RunningServer, items: list[int]) -> None:
    history = items[20:33]
    with Recommender(relay.grpc_url) as recommender:
        recommender.recommend(history, TOP_K, user_id=2)
    assert ahead(relay, history, 2) == PreInferReport(READY, 13 * L, 13 * L, 0)


def test_a_wrong_request_is_told_what_is_wrong(relay: RunningServer, items: list[int]) -> None:
    with pytest.raises(InferenceServerException, match="deadline_ms: is 0"):
        ahead(relay, items[:2], 1, deadline_ms=0)
    history = grpc.InferInput("history", [1, 1], "INT64")
    history.set_data_from_numpy(np.array([items[:1]]))
    client = grpc.InferenceServerClient(relay.grpc_url)
    with client, pytest.raises(InferenceServerException, match="user_id: is missing"):
        client.infer("pre_infer", [history])


def test_metrics_say_what_became_of_it(relay: RunningServer, items: list[int]) -> None:
    def counted(name: str, **labels: str) -> float:
        return total(scrape(relay.metrics_url), name, **labels)

    before = counted("genrec_pre_inferences_total", end="made")
    ahead(relay, items[40:52], 3, deadline_ms=60_000)
    until(lambda: counted("genrec_pre_inferences_total", end="made") > before)
    until(lambda: counted("genrec_pre_infer_total", outcome="admitted") >= 1)


def test_who_computes_may_be_killed_in_the_middle_of_a_cascade(
    relay: RunningServer, items: list[int]
) -> None:
    history, asked = items[:11], items[60:100]
    with Ranker(relay.grpc_url) as ranker:
        want = ranker.rank(history, asked, TOP_K, user_id=98)
        for user in range(100, 120):
            ahead(relay, history, user, deadline_ms=60_000)
        restarts = relay.restarts
        os.kill(stub_of(relay.pid, "score_candidates"), signal.SIGKILL)
        until(lambda: relay.restarts > restarts)
        for user in (100, 119):
            found = ranker.rank(history, asked, TOP_K, user_id=user)
            np.testing.assert_array_equal(found.item_ids, want.item_ids)
            np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)
    until(lambda: ahead(relay, history, 100).outcome == READY)
