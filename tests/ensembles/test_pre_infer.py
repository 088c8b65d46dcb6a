"""Prefixes computed ahead of rankings, in the local runtime: rankings find them, and no answer depends on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles.local import LocalRecommender, LocalRuntime, request
from ensembles.recommend import recommend
from genrec.catalogue.items import Catalogue
from genrec.engine.pre_infer import PreInference, PreInferences
from genrec.engine.rank_users import RankUsers
from genrec.errors import GenrecError
from genrec.models.prompt import window_start
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.report import (
    ADMITTED,
    NO_HISTORY,
    NO_MEMORY,
    NO_TIME,
    NOT_NEEDED,
    READY,
    PreInferReport,
    RankReport,
)
from genrec.steps import Answer
from tests.serving.processes import until

WIDTH, L = 16, 3
ALWAYS: dict[str, Any] = {"pre_infer_risk": 0, "pool_user_mb": 1, "pool_item_mb": 1, "pre_infer_share": 100}


@pytest.fixture(scope="module")
def local(tiny_ranker: Path) -> Iterator[LocalRecommender]:
    """A lease that no slow machine outlives."""
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", lease_ms=600_000, **ALWAYS) as runtime:
        yield runtime


class Torch:
    """The twin: the torch module, everything computed."""

    def __init__(self, artifact: Path) -> None:
        self.ranker = load_ranker(artifact / "model")
        self.catalogue = Catalogue.load(artifact / "catalogue.parquet")
        self.codes = torch.from_numpy(self.catalogue.codes + np.array(self.ranker.config.code_offsets)).long()

    @torch.no_grad()
    def scores(self, history: list[int], candidates: list[int]) -> dict[int, float]:
        kept = self.catalogue.rows_of(history)
        kept = kept[window_start(len(kept), self.ranker.config.max_history) :]
        user, asked = self.codes[kept].reshape(1, -1), self.codes[self.catalogue.rows_of(candidates)][None]
        found = self.ranker(user, torch.tensor([user.shape[1]]), asked, asked, "split")[0]
        return dict(zip(candidates, found.tolist(), strict=True))


@pytest.fixture(scope="module")
def twin(tiny_ranker: Path) -> Torch:
    return Torch(tiny_ranker)


def ahead(
    local: LocalRecommender, history: list[int], user: int, deadline_ms: int | None = None
) -> PreInferReport:
    (answer,) = local.pre_infer([history], user, deadline_ms)
    assert isinstance(answer, dict), answer
    return PreInferReport(*answer["report"][0].tolist())


def reused(answer: Answer) -> int:
    assert isinstance(answer, dict), answer
    return RankReport(*answer["report"][0].tolist()).user_reused


def check(answer: Answer, want: dict[int, float]) -> None:
    assert isinstance(answer, dict), answer
    ids, scores = answer["item_ids"][0].tolist(), answer["scores"][0]
    np.testing.assert_allclose(scores, [want[item] for item in ids], atol=1e-4)
    assert min(scores) >= sorted(want.values())[-len(ids)] - 1e-4


@pytest.mark.parametrize("length", [1, 12, 16, 40])
def test_a_ranking_finds_the_prefix_that_was_computed_ahead(
    local: LocalRecommender, twin: Torch, items: list[int], length: int
) -> None:
    """A short history, one as long as the window, and one whose oldest items are cut off."""
    history, asked = items[length : 2 * length], items[100:130]
    read = length - window_start(length, 16)
    said = ahead(local, [*history, -5], length)
    assert said == PreInferReport(ADMITTED, read * L, 0, 1)
    until(lambda: ahead(local, history, length) == PreInferReport(READY, read * L, read * L, 0))
    (answer,) = local.rank([(history, asked)], 5, user_id=length)
    check(answer, twin.scores(history, asked))
    assert reused(answer) == read * L
    (other,) = local.rank([(history, asked)], 5, user_id=10_000 + length)
    assert reused(other) == 0, "another user's"


@settings(max_examples=25, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 24), st.integers(0, 30)), min_size=2, max_size=10
    )
)  # fmt: skip
def test_whatever_is_computed_ahead_an_answer_is_the_module_s(
    local: LocalRecommender, twin: Torch, items: list[int], asked: list[tuple[bool, int, int, int]]
) -> None:
    """Signals that nobody follows, histories that grow or are others', rankings that come at once or much later."""
    for early, user, length, first in asked:
        history, candidates = items[user : user + length], items[100 + first : 120 + first]
        if early:
            assert ahead(local, history, user, 60_000).tokens == (length - window_start(length, 16)) * L
        else:
            (answer,) = local.rank([(history, candidates)], 5, user_id=user)
            check(answer, twin.scores(history, candidates))


def test_a_ranking_in_the_queue_does_not_bring_back_who_was_forgotten(
    local: LocalRecommender, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """He is forgotten when the ranking has been read and is not yet queued, so before anything is computed."""
    step: Any = local.runtime._steps["score_candidates"]
    pool, queue = step._now()[1].ahead.jobs.pool, step._scheduler.submit

    def late(*given: Any) -> None:
        forget(pool, owner_key(pool.secret, 41))
        queue(*given)

    monkeypatch.setattr(step._scheduler, "submit", late)
    for _ in range(2):
        (answer,) = local.rank([(items[:8], items[100:110])], 5, user_id=41)
        assert reused(answer) == 0
    monkeypatch.undo()
    assert [reused(local.rank([(items[:8], items[100:110])], 5, user_id=41)[0]) for _ in range(2)] == [
        0,
        8 * L,
    ]


def test_a_user_with_ten_cascades_at_once_gets_ten_right_answers(
    local: LocalRecommender, twin: Torch, items: list[int]
) -> None:
    def cascade(number: int) -> tuple[list[int], list[int], Answer]:
        history, asked = items[150 : 158 + number % 3], items[10 * number : 10 * number + 20]
        ahead(local, history, 77, 60_000)
        (answer,) = local.rank([(history, asked)], 5, user_id=77)
        return history, asked, answer

    with ThreadPoolExecutor(10) as pool:
        for history, asked, answer in pool.map(cascade, range(10)):
            check(answer, twin.scores(history, asked))


def test_a_flood_that_nobody_follows_is_bounded_and_rankings_go_on(
    tiny_ranker: Path, twin: Torch, items: list[int]
) -> None:
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", lease_ms=600_000, **ALWAYS) as local:
        outcomes = [ahead(local, items[:16], user, 60_000).outcome for user in range(200)]
        assert 0 < outcomes.count(ADMITTED) <= 85, "48 tokens of 256 bytes each, of 1 MB"
        assert set(outcomes) <= {ADMITTED, NO_MEMORY, NO_TIME}, "a machine that is slow has no time first"
        (answer,) = local.rank([(items[:9], items[50:80])], 5, user_id=1)
        check(answer, twin.scores(items[:9], items[50:80]))


def test_a_ranking_that_is_fast_enough_is_not_computed_ahead(tiny_ranker: Path, items: list[int]) -> None:
    """A budget of a minute is no risk."""
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", rank_budget_ms=60_000) as local:
        assert ahead(local, items[:5], 1) == PreInferReport(NOT_NEEDED, 5 * L, 0, 0, at_risk_from=0)
        assert ahead(local, [], 1) == PreInferReport(NO_HISTORY, 0, 0, 0)
        assert ahead(local, [-1, -2], 1) == PreInferReport(NO_HISTORY, 0, 0, 2)
        local.rank([(items[:5], items[50:80])], 5)
        assert ahead(local, items[:5], 1).at_risk_from > 1000, "it is known now what a ranking takes"


@pytest.mark.parametrize("given", [{"pool_user_mb": 0}, {"prefix_choice": "recompute"}])
def test_without_a_place_to_keep_it_nothing_is_computed(
    tiny_ranker: Path, items: list[int], given: dict[str, Any]
) -> None:
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", **{**ALWAYS, **given}) as local:
        assert ahead(local, items[:5], 1).outcome == NO_MEMORY


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"user_id": None}, "user_id: is missing"),
        ({"user_id": np.array([[1, 2]])}, "user_id: has 2 values"),
        ({"user_id": np.array([[1]], np.int32)}, "user_id: is of type int32"),
        ({"history": None}, "history: is missing"),
        ({"history": np.zeros((1, 65_537), np.int64)}, "history: has 65537 values (accepted: at most 65536)"),
        ({"history": np.zeros((2, 3), np.int64)}, "history: has shape [2, 3]"),
        ({"history": np.zeros((1, 3), np.float32)}, "history: is of type float32"),
        ({"deadline_ms": np.array([[0]])}, "deadline_ms: is 0 (accepted: 1 to 600000)"),
        ({"deadline_ms": np.array([[2**62]])}, f"deadline_ms: is {2**62}"),
        ({"deadline_ms": np.array([[9]], np.int32)}, "deadline_ms: is of type int32"),
    ],
)
def test_bad_input_is_answered_with_the_field_and_the_limit(
    local: LocalRecommender, items: list[int], change: dict[str, Any], problem: str
) -> None:
    tensors = {"history": np.array([items[:3]]), "user_id": np.array([[1]]), **change}
    assert local.ahead
    (answer,) = local.ahead.run([{name: value for name, value in tensors.items() if value is not None}])
    assert isinstance(answer, GenrecError) and problem in str(answer)


@pytest.mark.parametrize(("length", "read"), [(9, 9), (22, 14)])
def test_what_our_own_retrieval_computed_needs_no_pre_inference(
    tiny_ranker: Path, items: list[int], length: int, read: int
) -> None:
    """A shared backbone: `recommend` leaves its prompt's KV for the ranking."""
    history, user = items[:length], {"user_id": np.array([[5]])}
    with LocalRecommender(
        tiny_ranker, WIDTH, decoder="recommend_and_rank", lease_ms=600_000, **ALWAYS
    ) as local:
        retrieval = LocalRuntime(recommend(), local.settings, beside=local.runtime)
        (found,) = retrieval.run([{**request(history, 12), **user}])
        assert isinstance(found, dict)
        assert ahead(local, history, 5) == PreInferReport(READY, read * L, read * L, 0)
        assert ahead(local, history, 6).outcome == ADMITTED, "another user's"
        retrieval.close()


def test_a_part_that_fails_while_its_ranking_takes_over_is_computed_by_that(
    tiny_ranker: Path, twin: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another stream, which must not take what never was computed for done."""
    history, candidates = twin.catalogue.item_ids[:5].tolist(), twin.catalogue.item_ids[20:24].tolist()
    begun, taken = threading.Event(), threading.Event()
    fill, take = RankUsers.fill, PreInferences.take

    def failing_once(*given: Any) -> None:
        if begun.is_set():
            return fill(*given)
        begun.set()
        assert taken.wait(60)
        raise MemoryError("once")

    def told(*given: Any) -> PreInference | None:
        job = take(*given)
        if job and begun.is_set():
            taken.set()
        return job

    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", streams=2, **ALWAYS) as local:
        monkeypatch.setattr(RankUsers, "fill", failing_once)
        monkeypatch.setattr(PreInferences, "take", told)
        ahead(local, history, 7)
        assert begun.wait(60)
        for _ in range(2):
            answer = local.rank([(history, candidates)], 4, user_id=7)[0]
            check(answer, twin.scores(history, candidates))
