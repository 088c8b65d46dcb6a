"""Ensemble `recommend_and_rank`: as `recommend`, whose answer is ranked anew.

The steps of `recommend`, with as many items as `retrieve` says, then those of `rank` with them as candidates. Where
the ranker's KV is the generator's, `generate` leaves the prompt's in the pool, and the history is computed once.
"""

from __future__ import annotations

from dataclasses import replace

from ensembles import rank
from ensembles.description import Ensemble
from ensembles.recommend import (
    DEADLINE_MS,
    EXCLUSIONS,
    HISTORY,
    RANK_TOP_K,
    RETRIEVE,
    TOP_K,
    USER_ID,
    recommend,
)

REQUEST = (HISTORY, RETRIEVE, TOP_K, USER_ID, DEADLINE_MS, *EXCLUSIONS, *rank.EVENTS)
# Of `encode_history`, which would find `top_k` items
RETRIEVAL = {
    RANK_TOP_K.name: TOP_K.name,
    **{each.name: each.name for each in (HISTORY, RETRIEVE, USER_ID, DEADLINE_MS, *EXCLUSIONS)},
}


def recommend_and_rank() -> Ensemble:
    """The ensemble; L does not show in it."""
    plain = recommend()
    first, *middle, last = plain.steps
    found = {name: f"found_{name}" for name in ("item_ids", "scores")}
    candidates = {
        "history": "history", "top_k": "top_k", "user_id": "user_id", "ticket": "ticket", "owner": "owner",
        "candidates": found["item_ids"], "candidate_scores": found["scores"],
        **{tensor.name: tensor.name for tensor in rank.EVENTS},
    }  # fmt: skip
    steps = (
        replace(first, inputs=RETRIEVAL),
        *middle,
        replace(last, outputs=found),
        *rank.rank_steps(candidates, before="rank_"),
    )
    return Ensemble("recommend_and_rank", REQUEST, rank.ANSWER, (*plain.models, *rank.MODELS), steps)
