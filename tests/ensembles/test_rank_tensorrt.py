"""Rankings of the tensorrt target, with ONNX Runtime in the plans' place: the default target's answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.tensorrt.graphs import plan_graph, plan_names
from build.tensorrt.ranker import RANK, plan_ranker
from deploy.tensorrt.reference import ReferenceRuntime, questions
from ensembles.local import LocalRecommender, request
from genrec.errors import InputError
from genrec.models.config import ModelConfig
from genrec.rank.options import OPTIONS, RankerConfig
from tests.build.test_tensorrt import TOLERANCE, run, run_bf16
from tests.tiny import tiny_catalogue

WIDTH, TOP_K = 16, 8
ITEMS = tiny_catalogue().item_ids.tolist()
ASKED = [(ITEMS[n : n + 2 + 5 * n], ITEMS[50 + n : 80 + 3 * n]) for n in range(5)]


def ranking(history: list[int], candidates: list[int], **more: Any) -> dict[str, Any]:
    """A request."""
    asked = {**request(history, TOP_K), "candidates": np.array([candidates], np.int64), **more}
    del asked["exclude_history"]
    return asked


def same(found: Any, want: Any) -> None:
    assert not isinstance(found, Exception), found
    np.testing.assert_array_equal(found["item_ids"], want["item_ids"])
    np.testing.assert_allclose(found["scores"], want["scores"], atol=2e-5)


@pytest.fixture(scope="module")
def rank(tiny_ranker: Path) -> ReferenceRuntime:
    return ReferenceRuntime(tiny_ranker, WIDTH, "rank")


def test_rankings_are_the_default_target_s(tiny_ranker: Path, rank: ReferenceRuntime) -> None:
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        for found, want in zip(
            rank.run([ranking(*each) for each in ASKED]), local.rank(ASKED, TOP_K), strict=True
        ):
            same(found, want)
            assert found["report"][0, 4:7].tolist() == [0, 0, 2]  # nothing reused, order split


def test_without_a_history_or_a_known_item_it_answers_as_the_default_target(
    tiny_ranker: Path, rank: ReferenceRuntime
) -> None:
    asked = [([], ITEMS[:9]), ([-7], ITEMS[:9]), (ITEMS[:3], [ITEMS[5], -1, ITEMS[5]])]
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=0) as local:
        for found, want in zip(
            rank.run([ranking(*each) for each in asked]), local.rank(asked, TOP_K), strict=True
        ):
            same(found, want)
    (refused,) = rank.run([ranking(ITEMS[:3], [-1])])
    assert isinstance(refused, InputError) and "candidates" in str(refused)


@pytest.mark.parametrize("known", [{}, {"user_id": np.array([[7]])}])
def test_a_cascade_ranks_what_it_found_over_the_same_prompt(tiny_ranker: Path, known: dict[str, Any]) -> None:
    asked = [{**each, **known} for each in questions(tiny_ranker, "recommend_and_rank", 6, 12)]
    asked.append({**asked[0], "history": np.array([[-7]])})  # popular items
    # Nothing is left to recommend.
    asked.append({**asked[0], "history": np.array([ITEMS]), "exclude_history": np.array([[True]])})
    found = ReferenceRuntime(tiny_ranker, WIDTH, "recommend_and_rank").run(asked)
    sizes = {"pool_user_mb": 0, "pool_item_mb": 0}
    with LocalRecommender(tiny_ranker, WIDTH, decoder="recommend_and_rank", **sizes) as local:
        for mine, theirs in zip(found, local.runtime.run(asked), strict=True):
            same(mine, theirs)
    assert not found[-1]["item_ids"].size


def feeds(config: ModelConfig, ranker: RankerConfig, user: int = 11) -> dict[str, Any]:
    """Inputs of the plan: 2 requests of 5 candidates."""
    draw = np.random.default_rng(3)
    found: dict[str, Any] = {
        "candidates": draw.integers(0, config.vocab_size, (2, 5 * ranker.item_tokens)).astype(np.int32),
        "codes": draw.integers(0, config.vocab_size, (2, 5 * config.levels)).astype(np.int32),
        "ticket": np.array([[8, user, 0, 0, 0, 0], [8, user - 4, 0, 0, 0, 0]]),
    }
    for n in range(config.num_hidden_layers):
        for kind in "kv":
            shape = (2, config.num_key_value_heads, user, config.head_dim)
            found[f"shared_{kind}_{n}"] = draw.standard_normal(shape).astype(np.float32)
    return found


@pytest.fixture(scope="module")
def config(tiny_ranker: Path) -> ModelConfig:
    return ModelConfig.load(tiny_ranker / "model" / "config.json")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_typed_ranking_computes_the_same(tiny_ranker: Path, config: ModelConfig, kind: str) -> None:
    ranker = plan_ranker(tiny_ranker)
    assert ranker
    inputs, narrow = feeds(config, ranker), plan_graph(tiny_ranker, RANK, kind, config)
    want = run(plan_graph(tiny_ranker, RANK, "f32", config), inputs)["scores"]
    got = (run_bf16 if kind == "bf16" else run)(narrow, inputs)["scores"]
    assert got.dtype == np.float32 and np.abs(got - want).max() < TOLERANCE[kind] * np.abs(want).max()


@pytest.mark.parametrize("reach", [4, 6, 40])
def test_a_reach_cuts_the_user_s_oldest_tokens_off(
    tiny_ranker: Path, config: ModelConfig, tmp_path: Path, reach: int
) -> None:
    """As if a user had no others: their KV changes nothing, whatever it is."""
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    ranker = replace(RankerConfig.load(artifact / "model" / OPTIONS), reach=reach)
    ranker.save(artifact / "model" / OPTIONS)
    graph, inputs = plan_graph(artifact, RANK, "f32", config), feeds(config, ranker)
    want, other = run(graph, inputs)["scores"], dict(inputs)
    for name in [each for each in inputs if each.startswith("shared_")]:
        other[name] = inputs[name].copy()
        for row, (_, length, *_) in enumerate(inputs["ticket"]):
            other[name][row, :, : max(length - reach, 0)] = 1e3
            other[name][row, :, length:] = 1e3
    np.testing.assert_allclose(run(graph, other)["scores"], want, atol=1e-5)
    whole = run(plan_graph(tiny_ranker, RANK, "f32", config), inputs)["scores"]
    assert np.allclose(whole, want, atol=1e-5) == (reach >= 11)


def test_numbers_from_outside_are_brought_into_range(tiny_ranker: Path, config: ModelConfig) -> None:
    ranker = plan_ranker(tiny_ranker)
    assert ranker
    inputs, graph = feeds(config, ranker), plan_graph(tiny_ranker, RANK, "f32", config)
    for name, value in (("candidates", 2**31 - 1), ("codes", -5), ("candidates", -5), ("codes", 2**31 - 1)):
        other = {**inputs, name: np.full_like(inputs[name], value)}
        assert np.isfinite(run(graph, other)["scores"]).all()


def test_a_ranker_that_no_plan_can_run_has_none(
    tiny_ranker: Path, tmp_path: Path, config: ModelConfig
) -> None:
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    assert RANK in plan_names(artifact, config)
    options = RankerConfig.load(artifact / "model" / OPTIONS)
    for other in (
        replace(options, shared=False),
        replace(options, order="both"),
        replace(options, history="tokens"),
    ):
        other.save(artifact / "model" / OPTIONS)
        assert plan_ranker(artifact) is None and RANK not in plan_names(artifact, config)
