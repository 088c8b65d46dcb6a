"""What an answer says about itself: the output `report`, INT64[6], of rankings INT64[9], of pre-inferences INT64[5]."""

from __future__ import annotations

from typing import NamedTuple

MODEL, POPULARITY = 0, 1  # who answered

# What became of the wish to compute a user's prefix ahead of his ranking: the names, by their numbers.
PRE_INFER_OUTCOMES = (
    "admitted", "ready", "under_way", "not_needed", "no_memory", "no_time", "no_history",
)  # fmt: skip
ADMITTED, READY, UNDER_WAY, NOT_NEEDED, NO_MEMORY, NO_TIME, NO_HISTORY = range(len(PRE_INFER_OUTCOMES))


class Report(NamedTuple):
    """One number each, in this order."""

    answered_by: int  # MODEL, or POPULARITY where the history held no item of the catalogue
    dropped: int  # items of the history that the catalogue does not know
    cut: int  # oldest items beyond what the model reads
    prompt_tokens: int
    valid: int  # semantic IDs found valid, at most top_k
    catalogue_version: int


class RankReport(NamedTuple):
    """One number each, in this order."""

    answered_by: int  # MODEL, or POPULARITY where the history held no item of the catalogue
    dropped: int  # items of the history that the catalogue does not know
    cut: int  # oldest items beyond what the model reads
    left_out: int  # candidates that the catalogue does not know, or that were named before
    user_reused: int  # tokens of the user whose KV was there
    items_reused: int  # tokens of the candidates whose KV was there
    order: int  # 0: the user first, 1: the items first, 2: both apart, 3: nothing reused
    catalogue_version: int
    delta: int  # the last one in the ranker that gave the scores; 0: it is as it was exported


class PreInferReport(NamedTuple):
    """One number each, in this order."""

    outcome: int  # of PRE_INFER_OUTCOMES
    tokens: int  # of the user's prefix
    ready: int  # of them whose KV is in the pool already
    dropped: int  # items of the history that the catalogue does not know
    at_risk_from: int = 0  # items from which on a history's ranking is at risk, as the queue is; 0: not known
