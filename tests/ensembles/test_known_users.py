"""A request that names a known user is answered as one that brings his history, and his times where they are read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from genrec.report import PreInferReport
from genrec.steps.known_users import HISTORIES
from tests.serving.processes import until
from training.data.histories import Histories

USER, OTHER = 9, 4
ALWAYS = {"pre_infer_risk": 0, "pre_infer_share": 100, "pool_user_mb": 1}


@pytest.fixture(params=["tiny_ranker", "tiny_hstu", "tiny_hstu_next"])
def artifact(request: pytest.FixtureRequest, items: list[int], tmp_path: Path) -> Path:
    """Of every kind of ranker, with two users in its data."""
    made = shutil.copytree(request.getfixturevalue(request.param), tmp_path / "artifact")
    times = np.array([5, 6, 70, 0, 9, 9, 100_000, 200_000])
    Histories(np.array([OTHER, USER]), np.array(items[:8]), np.array([0, 3, 8]), times).save(
        made / HISTORIES, ["", ""]
    )
    return made


def asked(items: list[int], artifact: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of the user by name alone, and with all that is known of him."""
    named = {"user_id": np.array([[USER]]), **more}
    history = {"history": np.array([items[3:8]])}
    if not (artifact / "model" / "ranker.json").exists():
        history["times"] = np.array([[0, 9, 9, 100_000, 200_000]])
    return named, {**named, **history}


@pytest.mark.parametrize("ensemble", ["rank", "recommend_and_rank"])
def test_he_is_ranked_for_by_his_name(artifact: Path, items: list[int], ensemble: str) -> None:
    top_k = np.array([[6]], np.int32)
    wanted = {"candidates": np.array([items[20:60]])} if ensemble == "rank" else {"retrieve": 2 * top_k}
    with LocalRecommender(artifact, 16, decoder=ensemble, pool_user_mb=0) as local:
        found, want = local.runtime.run(asked(items, artifact, top_k=top_k, **wanted))
        (other,) = local.runtime.run([{"user_id": np.array([[OTHER]]), "top_k": top_k, **wanted}])
    assert isinstance(found, dict) and isinstance(want, dict) and isinstance(other, dict)
    np.testing.assert_array_equal(found["item_ids"], want["item_ids"])
    np.testing.assert_allclose(found["scores"], want["scores"], atol=1e-5)
    assert np.abs(found["scores"] - other["scores"]).max() > 1e-3, "whoever is named, the same"


def test_what_is_computed_ahead_of_his_ranking_is_his(artifact: Path, items: list[int]) -> None:
    with LocalRecommender(artifact, 16, decoder="rank", **ALWAYS) as local:

        def ahead() -> PreInferReport:
            assert local.ahead
            (signal,) = local.ahead.run([{"user_id": np.array([[USER]])}])
            assert isinstance(signal, dict), signal
            return PreInferReport(*signal["report"][0].tolist())

        until(lambda: ahead().ready == ahead().tokens > 0)
        top_k, candidates = np.array([[6]], np.int32), np.array([items[20:60]])
        named, whole = asked(items, artifact, top_k=top_k, candidates=candidates)
        for request in (named, whole):
            (answer,) = local.runtime.run([request])
            assert isinstance(answer, dict) and answer["report"][0, 4] == ahead().tokens, "not found"
