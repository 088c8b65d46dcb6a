"""What a ranking is asked for, and what it took: the same of any ranker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.rank.options import MOST_CANDIDATES
from genrec.steps import Tensors, check_tensor

if TYPE_CHECKING:  # it imports numba, which the first step does without
    from genrec.engine.ranking import Reuse


class Candidates(NamedTuple):
    """Distinct ones: `rows` int32[C] of the catalogue, the score `prior` float32[C] that each came with or 0.

    `left_out`: how many were unknown or named before.
    """

    rows: NDArray[np.int32]
    prior: NDArray[np.float32]
    left_out: int


def read_candidates(request: Tensors, catalogue: Catalogue, retrieved: bool) -> Candidates:
    """Those of a request. A retrieval may leave none; a client's list may not be empty. Raises InputError."""
    asked = check_tensor(request, "candidates", np.int64, most=MOST_CANDIDATES)
    rows = catalogue.rows_of(asked)
    _, first = np.unique(rows, return_index=True)
    first = np.sort(first[rows[first] >= 0])
    if not len(first) and not retrieved:
        problem = f"names no item of the catalogue; {asked[0]} is none" if len(asked) else "is empty"
        raise InputError("candidates", problem, f"1 to {MOST_CANDIDATES} item ids")
    prior = np.zeros(len(first), np.float32)
    if "candidate_scores" in request:
        prior = check_tensor(request, "candidate_scores", np.float32, len(asked))[first]
        if not np.isfinite(prior).all():
            raise InputError("candidate_scores", "has infinite values", "finite numbers")
    return Candidates(rows[first], prior, len(asked) - len(first))


def read_top_k(request: Tensors) -> int:
    """How many are to be answered. Raises InputError."""
    top_k = int(check_tensor(request, "top_k", np.int32, 1)[0])
    if not 1 <= top_k <= MOST_CANDIDATES:
        raise InputError("top_k", f"is {top_k}", f"1 to {MOST_CANDIDATES}")
    return top_k


def count_ranking(order: str, reuse: Reuse) -> None:
    """Count a ranking, tokens by what became of them, and bytes copied."""
    metrics.RANKINGS.add(order=order)
    kinds = ("user_reused", reuse.user), ("items_reused", reuse.items), ("computed", reuse.computed)
    for kind, tokens in kinds:
        metrics.RANK_TOKENS.add(tokens, kind=kind)
    metrics.RANK_COPIED.add(reuse.copied)
