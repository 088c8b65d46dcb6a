"""A cascade: the signal to pre-infer and retrieval at once, the caller's pre-processing, then the ranking (RelayGR).

    with Ranker(url) as ranker, Cascade(ranker, retrieve, rank_ms=50, cascade_ms=135) as cascade:
        answer = cascade.ask(history, user_id=42, top_k=10)
        print(answer.ranking.item_ids, answer.ms)

`retrieve` is any function of the caller's, or `recommended_by(recommender)`. What pre-inference does, and whether it
answers at all, changes no ranking: only how soon it is there. A history that is known to be short has no signal.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from clients.aio import AsyncRanker
from clients.errors import BadRequest
from clients.rank_wire import PreInference, Ranking
from clients.ranker import Ranker
from clients.recommender import Recommender
from clients.trigger import UNSENT, Trigger
from genrec.errors import GenrecError
from genrec.rank.options import USUAL_CANDIDATES

PRE_INFER, RETRIEVAL, PRE_PROCESSING, RANKING = STAGES = ("pre_infer", "retrieval", "pre_processing", "rank")
SIGNALS = 64  # threads that wait for answers to signals; where all do, further signals are not sent
NOT_YET = "no answer before the ranking's"
NOTHING_REUSED = 3  # as `Ranking.order`


class Candidates(NamedTuple):
    """Items to rank, and where they come from `recommend` their log-probabilities."""

    item_ids: ArrayLike
    scores: ArrayLike | None = None


class _Past(TypedDict):
    ratings: ArrayLike | None
    times: ArrayLike | None
    features: ArrayLike | None


class CascadeRequest(NamedTuple):
    """What the stages are told; the last four are for an HSTU ranker, where they are known (`Ranker.rank`)."""

    history: ArrayLike  # item ids, oldest first
    user_id: int
    ratings: ArrayLike | None = None
    times: ArrayLike | None = None
    now: int | None = None
    features: ArrayLike | None = None

    def past(self) -> _Past:
        """What is known of the user beside items: the signal and the ranking say the same."""
        return {"ratings": self.ratings, "times": self.times, "features": self.features}


Retrieve = Callable[[CascadeRequest], Candidates]
PreProcess = Callable[[CascadeRequest, Candidates], Candidates]
AsyncRetrieve = Callable[[CascadeRequest], Awaitable[Candidates]]
AsyncPreProcess = Callable[[CascadeRequest, Candidates], Awaitable[Candidates]]


class CascadeError(GenrecError):
    """A stage failed: `stage` says which, `error` what it raised."""

    def __init__(self, stage: str, error: Exception) -> None:
        self.stage, self.error = stage, error
        super().__init__(f"{stage}: {error}")


@dataclass(frozen=True, eq=False)
class CascadeAnswer:
    """The ranking, what became of pre-inference, and the milliseconds of each stage that ended."""

    ranking: Ranking
    pre_inference: PreInference | None  # None: it failed, and `problem` says how
    problem: str
    ms: dict[str, float]  # by STAGES; `pre_infer` runs beside the others: missing where it has not answered
    total_ms: float


class StageTimes:
    """Milliseconds by stage, and errors that say which stage raised them."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._begun = time.perf_counter()

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """The time of what is done inside. Raises CascadeError for an error there."""
        begun = time.perf_counter()
        try:
            yield
        except Exception as error:
            raise CascadeError(stage, error) from error
        finally:
            self.ms[stage] = 1e3 * (time.perf_counter() - begun)

    def answer(self, ranking: Ranking, pre_inference: PreInference | str) -> CascadeAnswer:
        """All together; a text is why there is no pre-inference."""
        found, problem = (None, pre_inference) if isinstance(pre_inference, str) else (pre_inference, "")
        ms = {stage: self.ms[stage] for stage in STAGES if stage in self.ms}
        return CascadeAnswer(ranking, found, problem, ms, 1e3 * (time.perf_counter() - self._begun))


class Cascade:
    """For as many threads as share it; keep it as long as its ranker, which stays the caller's to close.

    `cascade_ms` is how long from a request's start until its ranking is due, and goes along with the signal; `rank_ms`
    goes along with the ranking: the server sheds one that takes longer. Without them nothing is due.
    """

    def __init__(
        self, ranker: Ranker, retrieve: Retrieve, pre_process: PreProcess | None = None, *,
        cascade_ms: int | None = None, rank_ms: int | None = None,
    ) -> None:  # fmt: skip
        self._ranker, self._retrieve, self._pre_process = ranker, retrieve, pre_process
        self._cascade_ms, self._rank_ms = cascade_ms, rank_ms
        self._trigger = Trigger()
        self._signals = ThreadPoolExecutor(SIGNALS, thread_name_prefix="pre-infer")

    def ask(
        self, history: ArrayLike, user_id: int, top_k: int = 10, *, ratings: ArrayLike | None = None,
        times: ArrayLike | None = None, now: int | None = None, features: ArrayLike | None = None,
    ) -> CascadeAnswer:  # fmt: skip
        """The `top_k` best of what is retrieved; of nothing none, and no ranking is asked for.

        Raises CascadeError; never because of pre-inference.

        The last four are what only an HSTU ranker reads, as of `Ranker.rank`.
        """
        request, stages = CascadeRequest(history, user_id, ratings, times, now, features), StageTimes()
        wanted = self._trigger.wants(history)
        signal = self._signals.submit(self._signal, request, stages) if wanted else _unsent()
        try:
            with stages.of(RETRIEVAL):
                candidates = self._retrieve(request)
            if self._pre_process:
                with stages.of(PRE_PROCESSING):
                    candidates = self._pre_process(request, candidates)
            if not np.size(candidates.item_ids):
                ranking = nothing_ranked()
            else:
                with stages.of(RANKING):
                    ranking = self._ranker.rank(
                        history, candidates.item_ids, top_k, scores=candidates.scores, user_id=user_id,
                        deadline_ms=self._rank_ms, now=now, **request.past(),
                    )  # fmt: skip
        finally:
            signal.cancel()  # one that has not been sent: nobody will come for it
        return stages.answer(ranking, _outcome(signal))

    def _signal(self, request: CascadeRequest, stages: StageTimes) -> PreInference:
        with stages.of(PRE_INFER):
            answer = self._ranker.pre_infer(
                request.history, request.user_id, deadline_ms=self._cascade_ms, **request.past()
            )
        self._trigger.learn(answer)
        return answer

    def close(self) -> None:
        """Wait for the signals that were sent."""
        self._signals.shutdown()

    def __enter__(self) -> Cascade:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncCascade:
    """`Cascade` for asyncio: the functions are coroutine functions, and it needs no closing: the ranker's is enough."""

    def __init__(
        self, ranker: AsyncRanker, retrieve: AsyncRetrieve, pre_process: AsyncPreProcess | None = None, *,
        cascade_ms: int | None = None, rank_ms: int | None = None,
    ) -> None:  # fmt: skip
        """See `Cascade`."""
        self._ranker, self._retrieve, self._pre_process = ranker, retrieve, pre_process
        self._cascade_ms, self._rank_ms = cascade_ms, rank_ms
        self._trigger = Trigger()

    async def ask(
        self, history: ArrayLike, user_id: int, top_k: int = 10, *, ratings: ArrayLike | None = None,
        times: ArrayLike | None = None, now: int | None = None, features: ArrayLike | None = None,
    ) -> CascadeAnswer:  # fmt: skip
        """See `Cascade.ask`."""
        request, stages = CascadeRequest(history, user_id, ratings, times, now, features), StageTimes()
        signal = asyncio.create_task(self._signal(request, stages))
        try:
            with stages.of(RETRIEVAL):
                candidates = await self._retrieve(request)
            if self._pre_process:
                with stages.of(PRE_PROCESSING):
                    candidates = await self._pre_process(request, candidates)
            if not np.size(candidates.item_ids):
                ranking = nothing_ranked()
            else:
                with stages.of(RANKING):
                    ranking = await self._ranker.rank(
                        history, candidates.item_ids, top_k, scores=candidates.scores, user_id=user_id,
                        deadline_ms=self._rank_ms, now=now, **request.past(),
                    )  # fmt: skip
        finally:
            signal.cancel()  # the wait for its answer; a call on the wire runs to its end (clients.aio.AsyncClient)
            # Seen, so that asyncio does not log it where the cascade fails too.
            signal.add_done_callback(lambda task: task.cancelled() or task.exception())
        return stages.answer(ranking, _outcome(signal))

    async def _signal(self, request: CascadeRequest, stages: StageTimes) -> PreInference:
        if not self._trigger.wants(request.history):
            return UNSENT
        with stages.of(PRE_INFER):
            answer = await self._ranker.pre_infer(
                request.history, request.user_id, deadline_ms=self._cascade_ms, **request.past()
            )
        self._trigger.learn(answer)
        return answer


def _unsent() -> Future[PreInference]:
    known: Future[PreInference] = Future()
    known.set_result(UNSENT)
    return known


def _outcome(signal: Future[PreInference] | asyncio.Task[PreInference]) -> PreInference | str:
    """The signal's answer as far as there is one by now, or why there is none."""
    if not signal.done() or signal.cancelled():
        return NOT_YET
    error = signal.exception()
    return signal.result() if error is None else str(error)


def nothing_ranked() -> Ranking:
    """What `recommend` answers where nothing is left: no items, by popularity. No server was asked to rank them."""
    nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
    counts = dict.fromkeys(("dropped", "cut", "left_out", "user_reused", "items_reused", "delta"), 0)
    return Ranking(*nothing, "popularity", order=NOTHING_REUSED, catalogue_version=0, **counts)


def recommended_by(recommender: Recommender, count: int | None = None) -> Retrieve:
    """Retrieval by the generator: the `count` best unseen items, with their scores; None: 100, as far as the server's
    beam width and catalogue allow.
    """
    most, of_version = USUAL_CANDIDATES if count is None else count, 0

    def retrieve(request: CascadeRequest) -> Candidates:
        nonlocal most, of_version
        ask = partial(recommender.recommend, request.history, user_id=request.user_id, exclude_history=True)
        try:
            found = ask(top_k=most)
        except BadRequest as error:
            allowed = re.match(r"1 to (\d+):", error.limit)
            if count is not None or error.field != "top_k" or not allowed:
                raise
            most = int(allowed[1])  # the next one need not be refused first
            found = ask(top_k=most)
            of_version = found.catalogue_version
        if count is None and found.catalogue_version != of_version:
            most = USUAL_CANDIDATES  # this one may have more items
        return Candidates(found.item_ids, found.scores)

    return retrieve
