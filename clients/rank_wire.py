"""A ranking as tensors, and Triton's answer as a Ranking. The signatures are in docs/contracts.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.wire import InferResult, outputs_of, request_tensors, whole_numbers
from genrec.errors import InputError
from genrec.report import POPULARITY, RankReport

RANK, RECOMMEND_AND_RANK = "rank", "recommend_and_rank"


@dataclass(frozen=True, eq=False)
class Ranking:
    """`item_ids` int64[K], `scores` float32[K], best first, and how they came about."""

    item_ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    by: Literal["model", "popularity"]  # popularity: the history held no item of the catalogue
    dropped: int  # items of the history that the catalogue does not know
    cut: int  # oldest items beyond what the model reads
    left_out: int  # candidates that the catalogue does not know, or that were named before
    user_reused: int  # tokens of the user whose KV was there
    items_reused: int  # tokens of the candidates whose KV was there
    order: int  # 0: the user first, 1: the items first, 2: both apart, 3: nothing reused
    catalogue_version: int


def rank_tensors(
    history: ArrayLike, candidates: ArrayLike, top_k: int, scores: ArrayLike | None, user_id: int | None,
    deadline_ms: int | None,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """The request as tensors, each [1, n]. Raises InputError for what the tensor types cannot hold."""
    tensors = request_tensors(history, top_k, user_id=user_id, deadline_ms=deadline_ms)
    del tensors["exclude_history"]
    tensors["candidates"] = whole_numbers("candidates", candidates)
    if scores is not None:
        try:
            given = np.asarray(scores, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError("scores", f"are not numbers: {error}", "a number per candidate") from error
        if given.shape != tensors["candidates"].shape[1:]:
            limit = f"{tensors['candidates'].shape[1]}, one per candidate"
            raise InputError("scores", f"have shape {list(given.shape)}", limit)
        tensors["candidate_scores"] = given[None]
    return tensors


def parse_ranking(result: InferResult) -> Ranking:
    """The answer. Raises ServerError when an output is missing or not of one row."""
    items, scores, numbers = outputs_of(result, len(RankReport._fields))
    report = RankReport(*numbers)
    by: Literal["model", "popularity"] = "popularity" if report.answered_by == POPULARITY else "model"
    return Ranking(items, scores, by, *report[1:])
