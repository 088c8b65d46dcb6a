"""Scores to ranked items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.errors import InputError
from genrec.rank.kinds import hstu_of
from genrec.rank.options import ORDERS, RankerConfig
from genrec.report import MODEL, POPULARITY, RankReport
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor
from genrec.steps.ticket import read_ticket

LARGEST = np.finfo(np.float32).max


class RankLookup(EachAlone):
    """item_ids, prior, scores, reuse, delta, plan, ticket, left_out -> the best items first, their scores, report.

    An item's score is the ranker's and, of a candidate that came with a score, that one times a weight that was chosen
    on validation items; no weight is chosen for an HSTU ranker, whose score stands alone. Without a history the score
    it came with decides, or its popularity. A ranking of plans has no pool, so no reuse, delta and plan: it computes
    all in order `split`.
    """

    def __init__(self, settings: Settings) -> None:
        if hstu := hstu_of(settings.artifact, settings.ranker):
            self._longest, self._weight = hstu.longest, 0.0
        else:
            options = RankerConfig.of(settings.artifact, settings.target)
            self._longest = options.longest_history(load_config(settings.artifact, settings.target))
            self._weight = options.generator_weight

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        ticket = read_ticket(request, self._longest)
        ids = check_tensor(request, "item_ids", np.int64)
        prior = check_tensor(request, "prior", np.float32, len(ids))
        if not np.isfinite(prior).all():
            raise InputError("prior", f"has {prior[~np.isfinite(prior)][0]}", "finite numbers")
        user, items, order, delta = _taken(request)
        left_out = int(check_tensor(request, "left_out", np.int32, 1)[0])
        ticket.check_deadline("rank_lookup")
        if ticket.prompt_length:
            source = MODEL
            scores = self._together(check_tensor(request, "scores", np.float32, len(ids)), prior)
        else:
            source, scores = POPULARITY, prior
        best = np.lexsort((ids, -scores))[: ticket.top_k]
        report = RankReport(
            source, ticket.dropped, ticket.cut, left_out, user, items, order, ticket.version, delta
        )
        return {
            "item_ids": ids[best][None],
            "scores": scores[best][None],
            "report": np.array([report], np.int64),
        }

    def _together(self, scores: NDArray[np.float32], prior: NDArray[np.float32]) -> NDArray[np.float32]:
        """The ranker's scores float32[C] and those that candidates came with, weighed; finite as these are."""
        with np.errstate(over="ignore"):  # a caller's scores may be as large as numbers are
            both = scores + np.float32(self._weight) * prior
        return np.clip(both, -LARGEST, LARGEST)


def _taken(request: Tensors) -> tuple[int, int, int, int]:
    """Tokens of the user and of items that were reused, the order, and the delta of the weights."""
    if "plan" not in request:
        return 0, 0, ORDERS.index("split"), 0
    user, items, *_ = check_tensor(request, "reuse", np.int64, 4)
    order = check_tensor(request, "plan", np.int64, 3)[0]
    return int(user), int(items), int(order), int(check_tensor(request, "delta", np.int64, 1)[0])
