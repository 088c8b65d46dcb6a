"""A ranking as tensors, and Triton's answer as a Ranking. The signatures are in docs/contracts.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.errors import ServerError
from clients.request import UNREADABLE, integer, request_tensors, user_tensors, whole_numbers
from clients.wire import Answered, InferResult, answer_of
from genrec.errors import InputError
from genrec.report import PRE_INFER_OUTCOMES, PreInferReport, RankReport

RANK, RECOMMEND_AND_RANK, PRE_INFER = "rank", "recommend_and_rank", "pre_infer"
NOT_SENT = "not_sent"  # what becomes of a signal that the client keeps to itself


@dataclass(frozen=True, eq=False)
class Ranking(Answered):
    """Candidates in the ranker's order."""

    left_out: int  # candidates that the catalogue does not know, or that were named before
    user_reused: int  # tokens of the user whose KV was there
    items_reused: int  # tokens of the candidates whose KV was there
    order: int  # 0: the user first, 1: the items first, 2: both apart, 3: nothing reused
    catalogue_version: int
    delta: int  # the last one in the ranker that gave the scores; 0: it is as it was exported


@dataclass(frozen=True)
class PreInference:
    """What became of a wish to have a user's prefix computed ahead (RelayGR)."""

    outcome: str  # one of genrec.report.PRE_INFER_OUTCOMES, or NOT_SENT
    tokens: int  # of the user's prefix
    ready: int  # of them whose KV is there already
    dropped: int  # items of the history that the catalogue does not know
    at_risk_from: int = 0  # items from which on a history's ranking is at risk, as the queue is; 0: not known


def rank_tensors(
    history: ArrayLike | None, candidates: ArrayLike, top_k: int, scores: ArrayLike | None, user_id: int | None,
    deadline_ms: int | None,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """The request as tensors, each [1, n]. Raises InputError for what the tensor types cannot hold."""
    tensors = request_tensors(history, top_k, user_id=user_id, deadline_ms=deadline_ms)
    del tensors["exclude_history"]
    tensors["candidates"] = whole_numbers("candidates", candidates)
    if scores is not None:
        try:
            given = np.asarray(scores)
            if given.dtype.kind in "bSU":  # NumPy would read them: True as 1, and "1.5"
                raise TypeError(f"they are of type {given.dtype}")
            given = given.astype(np.float32)
        except UNREADABLE as error:
            raise InputError("scores", f"are not numbers: {error}", "a number per candidate") from error
        if given.shape != tensors["candidates"].shape[1:]:
            limit = f"{tensors['candidates'].shape[1]}, one per candidate"
            raise InputError("scores", f"have shape {list(given.shape)}", limit)
        tensors["candidate_scores"] = given[None]
    return tensors


def recommend_and_rank_tensors(
    history: ArrayLike | None, retrieve: int | None, top_k: int, **optional: Any
) -> dict[str, NDArray[Any]]:
    """As `request_tensors`, and how many items the generator is to find; None: the server says."""
    tensors = request_tensors(history, top_k, **optional)
    return tensors if retrieve is None else tensors | {"retrieve": integer("retrieve", retrieve, np.int32)}


def event_tensors(
    ratings: ArrayLike | None, times: ArrayLike | None, now: int | None, features: ArrayLike | None
) -> dict[str, NDArray[Any]]:
    """What an HSTU ranker reads beside items, each [1, n], of what is known. Raises InputError."""
    tensors = {
        name: whole_numbers(name, values, np.int32)
        for name, values in (("ratings", ratings), ("features", features))
        if values is not None
    }
    if times is not None:
        tensors["times"] = whole_numbers("times", times)
    if now is not None:
        tensors["now"] = integer("now", now, np.int64)
    return tensors


def parse_ranking(result: InferResult) -> Ranking:
    """The answer. Raises ServerError when an output is missing or not of one row."""
    return answer_of(result, len(RankReport._fields), Ranking)


def pre_infer_tensors(
    history: ArrayLike | None, user_id: int, deadline_ms: int | None
) -> dict[str, NDArray[Any]]:
    """The signal as tensors, each [1, n]. Raises InputError for what the tensor types cannot hold."""
    tensors = {**user_tensors(history, user_id), "user_id": integer("user_id", user_id, np.int64)}
    if deadline_ms is not None:
        tensors["deadline_ms"] = integer("deadline_ms", deadline_ms, np.int64)
    return tensors


def parse_pre_inference(result: InferResult) -> PreInference:
    """The answer. Raises ServerError when it is none of ours."""
    found = result.as_numpy("report")
    if found is None or found.shape != (1, len(PreInferReport._fields)):
        raise ServerError(f"the answer's report has shape {None if found is None else found.shape}")
    report = PreInferReport(*(int(x) for x in found[0]))
    if not 0 <= report.outcome < len(PRE_INFER_OUTCOMES):
        raise ServerError(f"the answer has an unknown outcome, {report.outcome}")
    return PreInference(PRE_INFER_OUTCOMES[report.outcome], *report[1:])
