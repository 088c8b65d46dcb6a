"""The client a person calls: one object for all threads, one method.

    with Recommender("127.0.0.1:8001") as recommender:
        print(recommender.recommend([1193, 661, 914], top_k=10).item_ids)

Nothing is retried behind the caller's back: a retry is load, and only the caller knows whether it is still
wanted. (One exception: over HTTP it is sent again when the kept-alive connection turns out to be closed.)
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from clients.client import Client
from clients.request import GroupNames, request_tensors
from clients.wire import MODEL, TIMEOUT_S, Protocols, Question, Recommendation, parse


class Recommender(Client):
    """A client of the ensemble `recommend`, or of another with the same inputs and outputs."""

    def __init__(
        self, url: str, protocol: Protocols = "grpc", *, timeout_s: float = TIMEOUT_S, model: str = MODEL
    ) -> None:
        """See `Client`."""
        super().__init__(url, protocol, timeout_s=timeout_s)
        self.model = model

    def recommend(
        self, history: ArrayLike | None, top_k: int = 10, *, user_id: int | None = None,
        deadline_ms: int | None = None, exclude_history: bool = False, exclude: ArrayLike | None = None,
        only: ArrayLike | None = None, exclude_groups: GroupNames | None = None,
        only_groups: GroupNames | None = None, traceparent: str | None = None,
    ) -> Recommendation:  # fmt: skip
        """The `top_k` best items after `history` (item ids, oldest first; may be empty). None: the one that the server
        has of `user_id`, where it serves an artifact with `histories.parquet`.

        Items of the history, where `exclude_history` says so, and those of `exclude` are not answered; with `only`
        nothing but its items is. `exclude_groups` and `only_groups` say the same of groups that the catalogue has
        (`genrec catalogue group`), by their names or numbers. `deadline_ms`: the server gives up this many milliseconds
        after it reads the request. `user_id` also travels as header `x-gr-user`, for routers that keep a user on one
        server. Raises InputError (BadRequest when the server found it), Overloaded, Unreachable, TimedOut, ServerError.
        """
        tensors = request_tensors(
            history, top_k, user_id=user_id, deadline_ms=deadline_ms, exclude_history=exclude_history,
            exclude=exclude, only=only, exclude_groups=exclude_groups, only_groups=only_groups,
        )  # fmt: skip
        groups = (exclude_groups, only_groups)
        return self._ask(Question(self.model, tensors, parse, user_id, traceparent, groups=groups))
