"""The same client for asyncio: as many requests in flight over one connection as the caller awaits.

async with AsyncRecommender("127.0.0.1:8001") as recommender:
    answers = await asyncio.gather(*(recommender.recommend(history) for history in histories))
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, TypeVar

import tritonclient.grpc.aio
import tritonclient.http.aio
from numpy.typing import ArrayLike

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
from clients.request import GroupNames, request_tensors
from clients.wire import (
    MODEL,
    TIMEOUT_S,
    Answer,
    InferResult,
    Protocols,
    Question,
    Recommendation,
    channel_to,
    check_protocol,
    check_timeout,
    check_url,
    parse,
)

Self = TypeVar("Self", bound="AsyncClient")
HTTP_CONNECTIONS = 100  # HTTP/1.1 carries one request per connection at a time


class AsyncClient:
    """`clients.client.Client` for asyncio; make it inside the running loop and close it there.

    A caller that stops waiting (`asyncio.wait_for`, a cancelled task) does not cancel the call on the wire:
    it runs to its end unheard, because a cancel can bring a Triton 2.51 down (H2). `close` waits for such
    calls.
    """

    def __init__(self, url: str, protocol: Protocols = "grpc", *, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is host:port of the protocol, [address]:port for IPv6; nothing is sent yet. Raises InputError."""
        check_protocol(protocol)
        host, _ = check_url(url)
        timeout_s = check_timeout(timeout_s)
        self.url, self.protocol, self.timeout_s = url, protocol, timeout_s
        self._calls: set[asyncio.Task[Any]] = set()
        self._client: Any
        if protocol == "grpc":
            self._client = tritonclient.grpc.aio.InferenceServerClient(url, channel_args=channel_to(host))
            self._extra: dict[str, Any] = {"client_timeout": timeout_s}
            self._input, self._output = tritonclient.grpc.InferInput, tritonclient.grpc.InferRequestedOutput
        else:
            self._client = tritonclient.http.aio.InferenceServerClient(
                url, conn_limit=HTTP_CONNECTIONS, conn_timeout=timeout_s
            )
            self._extra = {}
            self._input, self._output = tritonclient.http.InferInput, tritonclient.http.InferRequestedOutput

    async def _ask(self, question: Question[Answer]) -> Answer:
        """See `clients.client.Client`."""
        arguments = question.arguments(self._input, self._output)
        call = asyncio.ensure_future(self._client.infer(**arguments, **self._extra))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        try:
            result: InferResult = await asyncio.shield(call)
        except Exception as error:  # not CancelledError: that is the caller's own
            raise question.failed(error, self.url, self.timeout_s) from error
        return question.read(result)

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, so that asyncio does not log the error of a call nobody waits for

    async def close(self) -> None:
        """Wait for the calls on the wire, then close the connection."""
        if self._calls:
            await asyncio.wait(self._calls)
        await self._client.close()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncRecommender(AsyncClient):
    """`clients.recommender.Recommender` for asyncio."""

    def __init__(
        self, url: str, protocol: Protocols = "grpc", *, timeout_s: float = TIMEOUT_S, model: str = MODEL
    ) -> None:
        """See `AsyncClient`."""
        super().__init__(url, protocol, timeout_s=timeout_s)
        self.model = model

    async def recommend(
        self, history: ArrayLike | None, top_k: int = 10, *, user_id: int | None = None,
        deadline_ms: int | None = None, exclude_history: bool = False, exclude: ArrayLike | None = None,
        only: ArrayLike | None = None, exclude_groups: GroupNames | None = None,
        only_groups: GroupNames | None = None, traceparent: str | None = None,
    ) -> Recommendation:  # fmt: skip
        """See `Recommender.recommend`: same arguments, answer and errors."""
        tensors = request_tensors(
            history, top_k, user_id=user_id, deadline_ms=deadline_ms, exclude_history=exclude_history,
            exclude=exclude, only=only, exclude_groups=exclude_groups, only_groups=only_groups,
        )  # fmt: skip
        groups = (exclude_groups, only_groups)
        return await self._ask(Question(self.model, tensors, parse, user_id, traceparent, groups=groups))


class AsyncRanker(AsyncClient):
    """`clients.ranker.Ranker` for asyncio."""

    async def rank(
        self, history: ArrayLike | None, candidates: ArrayLike, top_k: int = 10, *, scores: ArrayLike | None = None,
        user_id: int | None = None, deadline_ms: int | None = None, traceparent: str | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, now: int | None = None,
        features: ArrayLike | None = None,
    ) -> Ranking:  # fmt: skip
        """See `Ranker.rank`."""
        tensors = rank_tensors(history, candidates, top_k, scores, user_id, deadline_ms)
        tensors |= event_tensors(ratings, times, now, features)
        return await self._ask(Question(RANK, tensors, parse_ranking, user_id, traceparent))

    async def pre_infer(
        self, history: ArrayLike | None, user_id: int, *, deadline_ms: int | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, features: ArrayLike | None = None,
    ) -> PreInference:  # fmt: skip
        """See `Ranker.pre_infer`."""
        tensors = pre_infer_tensors(history, user_id, deadline_ms)
        tensors |= event_tensors(ratings, times, None, features)
        return await self._ask(
            Question(PRE_INFER, tensors, parse_pre_inference, user_id, outputs=("report",))
        )

    async def recommend_and_rank(
        self, history: ArrayLike | None, retrieve: int | None = None, top_k: int = 10, *, user_id: int | None = None,
        deadline_ms: int | None = None, exclude_history: bool = False, exclude: ArrayLike | None = None,
        only: ArrayLike | None = None, exclude_groups: GroupNames | None = None,
        only_groups: GroupNames | None = None, traceparent: str | None = None,
        ratings: ArrayLike | None = None, times: ArrayLike | None = None, now: int | None = None,
        features: ArrayLike | None = None,
    ) -> Ranking:  # fmt: skip
        """See `Ranker.recommend_and_rank`."""
        tensors = recommend_and_rank_tensors(
            history, retrieve, top_k, user_id=user_id, deadline_ms=deadline_ms, exclude_history=exclude_history,
            exclude=exclude, only=only, exclude_groups=exclude_groups, only_groups=only_groups,
        )  # fmt: skip
        groups = (exclude_groups, only_groups)
        tensors |= event_tensors(ratings, times, now, features)
        return await self._ask(
            Question(RECOMMEND_AND_RANK, tensors, parse_ranking, user_id, traceparent, groups=groups)
        )
