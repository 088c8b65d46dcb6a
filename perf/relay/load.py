"""Cascades under open-loop load: each way to run one, what every request came to, and whether that is within budget."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.aio import AsyncRanker, AsyncRecommender
from clients.cascade import PRE_INFER, RANKING, AsyncCascade, Candidates, CascadeError, CascadeRequest
from clients.rank_wire import NOT_SENT, PreInference, Ranking
from genrec.errors import GenrecError
from perf.kit import traffic
from perf.relay.model import Items, draw
from perf.slo.replay import open_loop, percentile, undisturbed

CASCADE_MS, RANK_MS = 135, 50  # the paper's budgets, at P99
RETRIEVAL_S = 0.085  # of a foreign retrieval and its pre-processing, elsewhere
SUCCESS = 0.999
P99 = 0.99
PAUSE_S = RETRIEVAL_S  # of a client between two requests, on average
RETRIEVED = 32  # by our own generator, where it retrieves
ATOL = 0.02  # of the scores' deviation: how far the same ranking may be off, in bf16 too
WARM_UP = 4
new_users = itertools.count(1)  # nobody comes twice unless a way says so


class Asked(NamedTuple):
    """A history int64[S / L], the candidates of a foreign retrieval, and item -> score of the inline answer."""

    history: Items
    candidates: Items
    want: dict[int, float]


class Cascaded(NamedTuple):
    """One request: ms of its ranking and of the whole cascade since it was due; no ranking, where it left or failed."""

    rank_ms: float
    total_ms: float
    ranking: Ranking | None
    asked: Asked
    outcome: str = ""  # of pre-inference
    problem: str = ""
    left: bool = False


class Left(Exception):
    """The user has gone before the ranking."""


class Silent:
    """A ranker that is told nothing ahead: the baseline."""

    def __init__(self, ranker: AsyncRanker) -> None:
        self.rank = ranker.rank

    async def pre_infer(self, *_: Any, **__: Any) -> PreInference:
        """Nothing is sent."""
        return PreInference(NOT_SENT, 0, 0, 0)


class Spread:
    """Several servers: a user's own, or with `affinity` off any, for every call."""

    def __init__(self, rankers: Sequence[AsyncRanker], affinity: bool) -> None:
        self._rankers, self._affinity, self._draw = rankers, affinity, np.random.default_rng(0)

    def _of(self, user_id: int) -> AsyncRanker:
        return self._rankers[(user_id if self._affinity else self._draw.integers(2**31)) % len(self._rankers)]

    async def rank(self, *asked: Any, user_id: int, **more: Any) -> Ranking:
        """See `AsyncRanker`."""
        return await self._of(user_id).rank(*asked, user_id=user_id, **more)

    async def pre_infer(self, history: Any, user_id: int, **more: Any) -> PreInference:
        """See `AsyncRanker`."""
        return await self._of(user_id).pre_infer(history, user_id, **more)


@dataclass(frozen=True)
class RelayWay:
    """How cascades run: on which servers, and with what."""

    name: str
    servers: tuple[str, ...] = ("relay",)
    signal: bool = True
    affinity: bool = True
    returning: float = 0.0  # share of requests by users who came before, in this run
    retrieval: str = "foreign"  # or `recommend`, or `shared`: recommend_and_rank in one call

    @property
    def budget(self) -> tuple[float, float]:
        """ms of the ranking and of the cascade; a retrieval on the ranking's own cores is bound as a whole."""
        return (RANK_MS if self.retrieval == "foreign" else CASCADE_MS), CASCADE_MS


Send = Callable[[Asked, int, bool], Awaitable[Cascaded]]


def sender(way: RelayWay, rankers: Sequence[AsyncRanker], recommender: AsyncRecommender) -> Send:
    """One request of this way: what is asked, the user, and whether he leaves before his ranking."""
    ranker: Any = rankers[0] if len(rankers) == 1 else Spread(rankers, way.affinity)
    # Its candidates, and whether he leaves
    of_request: ContextVar[tuple[Items, bool]] = ContextVar("of_request")

    async def retrieve(request: CascadeRequest) -> Candidates:
        candidates, leaves = of_request.get()
        if way.retrieval == "foreign":
            await asyncio.sleep(RETRIEVAL_S)
        else:
            found = await recommender.recommend(request.history, RETRIEVED, user_id=request.user_id)
            candidates = found.item_ids
        if leaves:
            raise Left
        return Candidates(candidates)

    # One for all requests, as users keep it: it learns which histories need no signal.
    kept = AsyncCascade(ranker if way.signal else Silent(ranker), retrieve, cascade_ms=CASCADE_MS)

    async def cascade(asked: Asked, user: int, leaves: bool) -> Cascaded:
        of_request.set((asked.candidates, leaves))
        answer = await kept.ask(asked.history, user, len(asked.candidates))
        told = answer.pre_inference.outcome if answer.pre_inference else f"{PRE_INFER}: {answer.problem}"
        return Cascaded(answer.ms[RANKING], answer.total_ms, answer.ranking, asked, told)

    async def at_once(asked: Asked, user: int, leaves: bool) -> Cascaded:
        begun = time.perf_counter()
        ranking = await rankers[0].recommend_and_rank(asked.history, RETRIEVED, RETRIEVED, user_id=user)
        took = 1e3 * (time.perf_counter() - begun)
        return Cascaded(took, took, ranking, asked)

    return at_once if way.retrieval == "shared" else cascade


async def ask(send: Send, asked: Asked, user: int, leaves: bool = False) -> Cascaded:
    """One request, whatever comes of it."""
    try:
        return await send(asked, user, leaves)
    except (CascadeError, GenrecError) as error:
        left = isinstance(error, CascadeError) and isinstance(error.error, Left)
        return Cascaded(0.0, 0.0, None, asked, "", "" if left else str(error), left)


def run(
    way: RelayWay, urls: Sequence[str], asks: Sequence[Asked], arrivals: traffic.Seconds, *, gone: float = 0.0,
    clients: int = 0,
) -> list[Cascaded]:  # fmt: skip
    """Ask in turn at `arrivals` (seconds), and count from then; a share `gone` leaves before the ranking.

    With `clients`, as many requests are asked by so many, each a pause after his last one was answered. The pause is
    drawn (exponential): without it clients fall into step, and never meet again. Where nobody leaves, the load ends
    early once too many are late or unanswered for it to be held.
    """
    chance = np.random.default_rng(len(arrivals))
    users = users_of(len(arrivals), way.returning, chance)
    # Who comes back does so with the history he had.
    of_user = {user: asks[number % len(asks)] for number, user in enumerate(dict.fromkeys(users))}
    leaves = chance.random(len(arrivals)) < gone
    pauses = chance.exponential(PAUSE_S, len(arrivals))
    found: list[Cascaded] = []
    may_be_late = len(arrivals) - math.ceil(P99 * len(arrivals))

    def lost() -> bool:
        return not gone and sum(not in_time(way, each) for each in found) > may_be_late

    async def session() -> None:
        rankers = [AsyncRanker(url) for url in urls]
        async with AsyncRecommender(urls[0]) as recommender:
            send = sender(way, rankers, recommender)
            await asyncio.gather(*(ask(send, asks[n % len(asks)], next(new_users)) for n in range(WARM_UP)))
            start = time.monotonic() + 0.05

            async def one(number: int, due: float) -> None:
                late = 1e3 * (time.monotonic() - start - due)
                user = users[number]
                answer = await ask(send, of_user[user], user, bool(leaves[number]))
                found.append(answer._replace(total_ms=answer.total_ms + late))

            async def now(number: int) -> None:
                await one(number, time.monotonic() - start)

            with undisturbed():
                if clients:
                    await closed_loop(clients, pauses, now, lost)
                else:
                    await open_loop(arrivals, start, one, lost)
        await asyncio.gather(*(ranker.close() for ranker in rankers))

    asyncio.run(session())
    return found


def users_of(count: int, returning: float, chance: np.random.Generator) -> list[int]:
    """Who asks, request by request: a share `returning` of them by somebody who has asked before, the others new."""
    users: list[int] = []
    for comes_back in chance.random(count) < returning:
        users.append(int(chance.choice(users)) if comes_back and users else next(new_users))
    return users


async def closed_loop(
    clients: int, pauses: Sequence[float], one: Callable[[int], Awaitable[None]], over: Callable[[], bool]
) -> None:
    """Requests 0, 1, ... one after the other by each of so many clients, after a pause (seconds), until it is over."""
    numbers = iter(range(len(pauses)))  # of all clients

    async def client() -> None:
        for number in numbers:
            await asyncio.sleep(pauses[number])
            if over():
                break
            await one(number)

    await asyncio.gather(*(client() for _ in range(clients)))


class LoadPoint(NamedTuple):
    """A load and what came of it."""

    requests: int
    rank_p99_ms: float | None
    total_p99_ms: float | None
    success: float
    wrong: int
    held: bool
    reused: float  # share of answered rankings that found KV of their user
    outcomes: dict[str, int]
    problems: dict[str, int]


def in_time(way: RelayWay, each: Cascaded) -> bool:
    """Whether it was answered within the budgets."""
    return each.ranking is not None and each.rank_ms <= way.budget[0] and each.total_ms <= way.budget[1]


def point_of(way: RelayWay, found: Sequence[Cascaded]) -> LoadPoint:
    """Whether the budgets hold: both P99 and the share of requests that got an answer."""
    stayed = [each for each in found if not each.left]
    answered = [each for each in stayed if each.ranking is not None]
    rank = percentile([each.rank_ms for each in answered], P99)
    total = percentile([each.total_ms for each in answered], P99)
    success = len(answered) / max(len(stayed), 1)
    within = rank is not None and total is not None and rank <= way.budget[0] and total <= way.budget[1]
    there = sum(each.ranking.user_reused > 0 for each in answered if each.ranking)
    return LoadPoint(
        len(found), rank, total, success, sum(is_wrong(each) for each in answered), within and success >= SUCCESS,
        there / max(len(answered), 1), dict(Counter(each.outcome for each in answered)),
        dict(Counter(each.problem for each in found if each.problem)),
    )  # fmt: skip


def is_wrong(found: Cascaded) -> bool:
    """Whether other items are answered than inline, in another order, or with other scores."""
    assert found.ranking
    items, scores = found.ranking.item_ids.tolist(), found.ranking.scores
    want: NDArray[np.float64] = np.array(list(found.asked.want.values()))
    if set(items) != set(found.asked.want) or (np.diff(scores) > 0).any():
        return True
    apart = np.abs(scores - [found.asked.want[item] for item in items])
    return not apart.max() <= ATOL * want.std()  # NaN is wrong too


async def _inline(url: str, tokens: int, number: int, retrieval: str) -> Asked:
    """A request and its answer by a user of whom nothing is known."""
    history, candidates = draw(tokens, number)
    async with AsyncRanker(url) as ranker, AsyncRecommender(url) as recommender:
        if retrieval != "foreign":
            candidates = (await recommender.recommend(history, RETRIEVED)).item_ids
        answer = await ranker.rank(history, candidates, len(candidates), user_id=next(new_users))
    scores: Sequence[float] = answer.scores.tolist()
    return Asked(history, candidates, dict(zip(answer.item_ids.tolist(), scores, strict=True)))


def asks_of(url: str, tokens: Sequence[int], retrieval: str) -> list[Asked]:
    """Requests with histories of so many tokens, one after the other, and their inline answers."""
    return [asyncio.run(_inline(url, int(each), number, retrieval)) for number, each in enumerate(tokens)]
