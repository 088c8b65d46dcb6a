"""Answers of rankings, held against scores that are computed anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from genrec.report import RankReport
from genrec.steps import Answer

Scores = Callable[..., dict[int, float]]  # history, candidates, order -> score of every candidate


def report_of(answer: Answer) -> RankReport:
    assert isinstance(answer, dict), answer
    return RankReport(*(int(x) for x in answer["report"][0]))


def check(answer: Answer, want: dict[int, float], top_k: int) -> RankReport:
    """The best of `want`, best first, each once."""
    report = report_of(answer)
    assert isinstance(answer, dict)
    ids, scores = answer["item_ids"][0].tolist(), answer["scores"][0]
    assert len(ids) == len(set(ids)) == min(top_k, len(want))
    np.testing.assert_allclose(scores, [want[item] for item in ids], atol=1e-4)
    assert (np.diff(scores) <= 0).all()
    assert min(scores) >= sorted(want.values())[-len(ids)] - 1e-4, "none better was left out"
    return report
