"""A user who is forgotten while his own request is between two steps: it is answered, and nothing of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender, request
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from genrec.steps.encode_candidates import EncodeCandidates
from genrec.steps.encode_prefix import EncodePrefix
from genrec.steps.validity_lookup import ValidityLookup
from tests.ensembles.rankings import Scores, check, report_of

USER = 7
SIZES: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "pre_infer_risk": 0, "pre_infer_share": 100}


def forget_behind(step: type, local: LocalRecommender, patch: pytest.MonkeyPatch) -> None:
    """Between this step and the next."""
    real, pool = step.run, Pool(local.settings.pool)  # type: ignore[attr-defined]

    def run(self: Any, requests: Any) -> Any:
        answers = real(self, requests)
        assert forget(pool, owner_key(pool.secret, USER)) is not None
        return answers

    patch.setattr(step, "run", run)


@pytest.fixture
def local(tiny_ranker: Path) -> Any:
    with LocalRecommender(tiny_ranker, 16, decoder="rank", **SIZES) as runtime:
        yield runtime


def reused(local: LocalRecommender, items: list[int]) -> int:
    (answer,) = local.rank([(items[:5], items[20:40])], 5, user_id=USER)
    return report_of(answer).user_reused


def test_nothing_of_a_ranking_is_kept(
    local: LocalRecommender, by_torch: Scores, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        forget_behind(EncodeCandidates, local, patch)
        (answer,) = local.rank([(items[:5], items[20:40])], 5, user_id=USER)
        check(answer, by_torch(items[:5], items[20:40]), 5)
    assert [reused(local, items) for _ in range(2)] == [0, 15], "what comes later is kept"


def test_nothing_of_a_ranking_behind_a_retrieval_is_kept(
    tiny_ranker: Path, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second step that reads the request must not take it for one that has just come."""
    asked = {
        **request(items[:5], 5), "retrieve": np.array([[12]], np.int32), "user_id": np.array([[USER]]),
    }  # fmt: skip
    with LocalRecommender(tiny_ranker, 16, decoder="recommend_and_rank", **SIZES) as local:
        pool = Pool(local.settings.pool)
        with monkeypatch.context() as patch:
            forget_behind(ValidityLookup, local, patch)
            local.runtime.run([asked])
        assert forget(pool, owner_key(pool.secret, USER)) == 0
        local.runtime.run([asked])
        assert forget(pool, owner_key(pool.secret, USER)) == 1, "what comes later is kept"


def test_nothing_is_computed_ahead(
    local: LocalRecommender, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        forget_behind(EncodePrefix, local, patch)
        local.pre_infer([items[:5]], USER)
    assert reused(local, items) == 0
