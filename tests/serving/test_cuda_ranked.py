"""Rankings with target `cuda`, on CPU tensors: the default target's answers, by a real tritonserver.

What only a GPU can show is checked by `perf.gpu.run`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.cuda.engines import build_engines as build_cuda
from clients.ranker import Ranker
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from tests.serving.processes import until
from tests.serving.ranked import rank_many, with_others
from tests.serving.servers import brief_server

WIDTH, TOP_K = 16, 8
Asked = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("cuda") / "artifact")
    build_cuda(folder, "f32", "cpu")
    return folder


@pytest.fixture(scope="module")
def asked(artifact: Path) -> Asked:
    """Histories and candidates."""
    ids = Catalogue.load(artifact / "catalogue.parquet").item_ids.tolist()
    return [(ids[n : n + 3 + n], ids[50 + n : 90 + 2 * n]) for n in range(6)]


@pytest.fixture(scope="module")
def want(artifact: Path, asked: Asked) -> list[Any]:
    """What the default target answers, with nothing in its pool."""
    with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        return local.rank(asked, TOP_K)


@pytest.fixture(scope="module")
def ranking(artifact: Path) -> Iterator[RunningServer]:
    names, sizes = (
        ("rank", "recommend_and_rank", "recommend", "pre_infer"),
        {"pool_user_mb": 4, "pool_item_mb": 4},
    )
    ahead = {"pre_infer_risk": 0, "pre_infer_share": 100, "lease_ms": 600_000, "pool_fill": "none"}
    ahead["rank_budget_ms"] = 10_000  # whatever torch takes here, several may share a pass
    with brief_server(artifact, target="cuda", beam_width=WIDTH, ensembles=names, **sizes, **ahead) as server:
        yield server


def check(found: Any, answer: dict[str, Any]) -> None:
    np.testing.assert_array_equal(found.item_ids, answer["item_ids"][0])
    np.testing.assert_allclose(found.scores, answer["scores"][0], atol=2e-5)


def test_rankings_are_the_default_target_s_and_reuse_what_is_there(
    ranking: RunningServer, asked: Asked, want: list[Any]
) -> None:
    with Ranker(ranking.grpc_url) as ranker:
        for user, ((history, candidates), answer) in enumerate(zip(asked, want, strict=True)):
            for _ in range(3):
                found = ranker.rank(history, candidates, TOP_K, user_id=user)
                check(found, answer)
            assert found.user_reused == 3 * len(history) and found.items_reused == 3 * len(candidates)


def test_rankings_of_many_at_once_share_passes(ranking: RunningServer, asked: Asked, want: list[Any]) -> None:
    before = with_others(ranking)
    rank_many(ranking.grpc_url, asked, want, 60, TOP_K)
    until(lambda: with_others(ranking) > before)


def test_a_prefix_is_computed_ahead_and_a_cascade_ranks_what_it_found(
    ranking: RunningServer, asked: Asked, want: list[Any]
) -> None:
    (history, candidates), answer = asked[5], want[5]
    with Ranker(ranking.grpc_url) as ranker, Recommender(ranking.grpc_url) as recommender:
        assert ranker.pre_infer(history, 77).outcome == "admitted"
        found = ranker.rank(history, candidates, TOP_K, user_id=77)
        check(found, answer)
        assert found.user_reused == 3 * len(history)
        both = ranker.recommend_and_rank(history, retrieve=12, top_k=TOP_K)
        assert both.user_reused == 3 * len(history), "what `generate` computed of it"
        retrieved = recommender.recommend(history, 12)
        again = ranker.rank(history, retrieved.item_ids, TOP_K)
        np.testing.assert_array_equal(both.item_ids, again.item_ids)


@pytest.mark.parametrize("choice", ["recompute", "user", "item", "hazard"])
def test_the_paper_s_orders_are_the_default_target_s(artifact: Path, asked: Asked, choice: str) -> None:
    sizes: dict[str, Any] = {"pool_user_mb": 4, "pool_item_mb": 4, "prefix_choice": choice, "decoder": "rank"}
    cpu, cuda = (LocalRecommender(artifact, WIDTH, target=name, **sizes) for name in ("openvino", "cuda"))
    with cpu, cuda:
        for _ in range(2):
            for want, got in zip(cpu.rank(asked, TOP_K), cuda.rank(asked, TOP_K), strict=True):
                np.testing.assert_array_equal(got["item_ids"], want["item_ids"])
                np.testing.assert_allclose(got["scores"], want["scores"], atol=2e-5)
