"""The client for rankings: candidates of anyone's retrieval, or of the generator's own.

with Ranker("127.0.0.1:8001") as ranker:
    print(ranker.rank([1193, 661, 914], candidates=[50, 172, 1, 2355], top_k=3).item_ids)
    print(ranker.recommend_and_rank([1193, 661, 914], retrieve=100, top_k=10).item_ids)
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from clients.client import Client
from clients.rank_wire import (
    PRE_INFER,
    RANK,
    RECOMMEND_AND_RANK,
    PreInference,
    Ranking,
    event_tensors,
    parse_pre_inference,
    parse_ranking,
    pre_infer_tensors,
    rank_tensors,
    recommend_and_rank_tensors,
)
from clients.request import GroupNames
from clients.wire import Question


class Ranker(Client):
    """A client of the ensembles `rank`, `pre_infer` and `recommend_and_rank`."""

    def rank(
        self, history: ArrayLike | None, candidates: ArrayLike, top_k: int = 10, *, scores: ArrayLike | None = None,
        user_id: int | None = None, deadline_ms: int | None = None, traceparent: str | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, now: int | None = None,
        features: ArrayLike | None = None,
    ) -> Ranking:  # fmt: skip
        """The `top_k` best of `candidates` (item ids) after `history` (item ids, oldest first; None as in `recommend`).

        `scores`: of the candidates, where they come from `recommend`: their log-probabilities. `user_id`: whose KV to
        reuse and to keep; it also travels as header `x-gr-user`. Raises as `Recommender.recommend`.

        What only an HSTU ranker reads, where it is known: of every item of the history its `ratings` (1 and up, 0 where
        unknown) and `times` (seconds); `now` on the same clock, the newest of them if left out; the user's `features`.
        One of the next item reads `times` and `now` alone.
        """
        tensors = rank_tensors(history, candidates, top_k, scores, user_id, deadline_ms)
        tensors |= event_tensors(ratings, times, now, features)
        return self._ask(Question(RANK, tensors, parse_ranking, user_id, traceparent))

    def pre_infer(
        self, history: ArrayLike | None, user_id: int, *, deadline_ms: int | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, features: ArrayLike | None = None,
    ) -> PreInference:  # fmt: skip
        """Say that this history will be ranked for this user; the server computes its prefix ahead, if that pays.

        Answered at once, before anything is computed. `deadline_ms`: how long from now until the ranking is due.
        The last three as the ranking will have them: what differs is computed anew. Neither whether it is called nor
        its answer changes what `rank` answers. RelayGR. Raises as `rank`.
        """
        tensors = pre_infer_tensors(history, user_id, deadline_ms)
        tensors |= event_tensors(ratings, times, None, features)
        return self._ask(Question(PRE_INFER, tensors, parse_pre_inference, user_id, outputs=("report",)))

    def recommend_and_rank(
        self, history: ArrayLike | None, retrieve: int | None = None, top_k: int = 10, *, user_id: int | None = None,
        deadline_ms: int | None = None, exclude_history: bool = False, exclude: ArrayLike | None = None,
        only: ArrayLike | None = None, exclude_groups: GroupNames | None = None,
        only_groups: GroupNames | None = None, traceparent: str | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, now: int | None = None,
        features: ArrayLike | None = None,
    ) -> Ranking:  # fmt: skip
        """The `top_k` best of the `retrieve` items that the generator finds; None: 100, or `top_k` if that is more, as
        far as the server's beam width and catalogue allow. The last four and errors as of `rank`, what may be
        answered as of `Recommender.recommend`.
        """
        tensors = recommend_and_rank_tensors(
            history, retrieve, top_k, user_id=user_id, deadline_ms=deadline_ms, exclude_history=exclude_history,
            exclude=exclude, only=only, exclude_groups=exclude_groups, only_groups=only_groups,
        )  # fmt: skip
        groups = (exclude_groups, only_groups)
        tensors |= event_tensors(ratings, times, now, features)
        return self._ask(
            Question(RECOMMEND_AND_RANK, tensors, parse_ranking, user_id, traceparent, groups=groups)
        )
