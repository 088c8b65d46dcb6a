"""Rankings that wait for one another run as one pass: each is answered as if it were alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.openvino.operations import can_be_compiled
from ensembles.local import LocalRecommender
from genrec.engine.rank_items import RankItems
from genrec.engine.ranking import RankExecutor
from genrec.errors import GenrecError
from genrec.steps.score_candidates import ScoreCandidates
from tests.ensembles.rankings import Scores, check, report_of

pytestmark = pytest.mark.skipif(
    not can_be_compiled("f32"), reason="attention stays in OpenVINO's nodes: no g++ or no AVX2"
)
WIDTH, ODD = 16, 13


@pytest.fixture(autouse=True)
def gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass begins before all rankings of a batch have come, however slow the machine: then they wait together."""
    all_there, missing = threading.Event(), [0]
    run, submit, score = ScoreCandidates.run, ScoreCandidates.submit, ScoreCandidates.score

    def bring(self: ScoreCandidates, requests: Any) -> Any:
        missing[0] = len(requests)
        all_there.clear()
        return run(self, requests)

    def come(self: ScoreCandidates, *given: Any) -> None:
        submit(self, *given)
        missing[0] -= 1
        if not missing[0]:
            all_there.set()

    def begin(self: ScoreCandidates, *given: Any) -> Any:
        assert all_there.wait(60)
        return score(self, *given)

    for name, of in (("run", bring), ("submit", come), ("score", begin)):
        monkeypatch.setattr(ScoreCandidates, name, of)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rankings of every pass in order `split`."""
    sizes: list[int] = []
    real = RankExecutor.together

    def together(self: RankExecutor, asked: Any) -> Any:
        sizes.append(len(asked))
        return real(self, asked)

    monkeypatch.setattr(RankExecutor, "together", together)
    return sizes


@pytest.fixture
def local(tiny_ranker: Path, items: list[int]) -> Iterator[LocalRecommender]:
    """It has ranked before, so it knows what a pass takes. A pass may take long enough for any company."""
    sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "rank_budget_ms": 10_000}
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", **sizes) as runtime:
        for user in range(3):
            runtime.rank([(items[user : user + 3], items[100:110])], 5, user_id=100 + user)
        yield runtime


def test_those_that_wait_are_one_pass_and_each_has_its_own_answer(
    local: LocalRecommender, by_torch: Scores, items: list[int], passes: list[int]
) -> None:
    """Histories and candidates of many lengths, some of them there; candidates that several have and nobody has yet."""
    draw = np.random.default_rng(3)
    for _ in range(3):
        asked = [
            (items[user : user + int(draw.integers(1, 12))], items[first : first + int(draw.integers(1, 30))])
            for user, first in zip(draw.integers(0, 60, 20), draw.integers(60, 160, 20), strict=True)
        ]
        for (history, candidates), answer in zip(asked, local.rank(asked, 5), strict=True):
            check(answer, by_torch(history, candidates), 5)
    assert max(passes) > 1, "every ranking was a pass of its own"


def test_what_several_miss_is_computed_once(
    local: LocalRecommender,
    by_torch: Scores,
    items: list[int],
    passes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pass: while another ranking ran, nobody had computed it yet."""
    candidates, computed = items[120:140], []
    real = RankItems._entries

    def entries(self: RankItems, tokens: Any) -> Any:
        computed.extend(map(tuple, tokens.tolist()))
        return real(self, tokens)

    monkeypatch.setattr(RankItems, "_entries", entries)
    asked = [(items[:4], items[60:80]), *[(items[:4], candidates)] * 11]
    for (history, wanted), answer in zip(asked, local.rank(asked, 5), strict=True):
        check(answer, by_torch(history, wanted), 5)
    assert max(passes) > 1, "every ranking was a pass of its own"
    assert len(computed) == len(set(computed)) > len(candidates)


def test_one_that_fails_takes_no_other_with_it(
    local: LocalRecommender,
    by_torch: Scores,
    items: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, odd_passes = RankExecutor.together, []

    def together(self: RankExecutor, asked: Any) -> Any:
        if any(len(request.candidates) == ODD for request, _ in asked):
            odd_passes.append(len(asked))
            raise RuntimeError("of this one")
        return real(self, asked)

    monkeypatch.setattr(RankExecutor, "together", together)
    counts = [12, ODD, 14, 12, ODD, 12, 14, 12]
    asked = [(items[n : n + 4], items[100 : 100 + count]) for n, count in enumerate(counts)]
    for (history, candidates), answer in zip(asked, local.rank(asked, 5), strict=True):
        if len(candidates) == ODD:
            assert isinstance(answer, GenrecError) and "internal error (RuntimeError)" in str(answer)
        else:
            check(answer, by_torch(history, candidates), 5)
    assert max(odd_passes) > 1, "it failed alone"


def test_the_same_user_twice_in_a_pass_is_kept_once(
    local: LocalRecommender, by_torch: Scores, items: list[int]
) -> None:
    asked = [(items[5:9], items[100 + n : 120 + n]) for n in range(12)]
    for (history, candidates), answer in zip(asked, local.rank(asked, 5, user_id=7), strict=True):
        check(answer, by_torch(history, candidates), 5)
    (answer,) = local.rank([(items[5:9], items[100:120])], 5, user_id=7)
    assert report_of(answer).user_reused == 4 * 3
