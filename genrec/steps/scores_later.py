"""What steps that score candidates have in common: rankings, and users' KV computed ahead of them, in one queue.

In one process too (RelayGR): two engines would fight for the cores.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from genrec.engine.pre_infer import PartByPart, PreInference
from genrec.engine.ranking import RankExecutor, Scored
from genrec.errors import GenrecError, ModelError, internal
from genrec.pool.owner import Owner
from genrec.rank.options import ONLY_USER
from genrec.report import PreInferReport
from genrec.schedule.idle_items import IdleBatch
from genrec.schedule.relay import Relay
from genrec.schedule.scheduler import Scheduler
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, check_tensor
from genrec.steps.candidates import count_ranking
from genrec.steps.later import AnswersLater, Respond
from genrec.steps.owner import read_owner
from genrec.steps.ticket import Ticket

log = logging.getLogger("genrec.score_candidates")
# Of a ranking's budget that a pass of several may take: what comes meanwhile waits for it.
SHARE = 0.5
READS_USER = ("user", "split")  # orders


class Executor(Protocol):
    """Whole rankings by the weights of one moment."""

    @property
    def ahead(self) -> PartByPart | None:
        """What computes users' KV ahead, if anything can be kept of it."""

    @property
    def one_core(self) -> Any:
        """The same on one core, if there is such."""

    @property
    def captured(self) -> int:
        """See `genrec.engine.interface.RankPasses.captured`."""


E = TypeVar("E", bound=Executor)
Stream = Callable[[], tuple[int, E]]  # the executor that serves now, and the number of its last delta


@dataclass(frozen=True)
class Ranking:
    """Of a user's prefix int32[S] or [S, n], and of so many tokens behind it, in one of `rank.options.ORDERS`."""

    prefix: NDArray[np.int32]
    behind: int
    order: str
    asked: Any  # what `ScoresLater.score` reads
    answered: Callable[[], None] = lambda: None  # called then


@dataclass(frozen=True)
class _Waiting:
    ranking: Ranking
    missing: int  # tokens of its user that were not in the pool when it came
    ticket: Ticket
    respond: Respond

    def computed(self, answer: Answer) -> bool:
        """Whether what was missing was: while it waited, a pre-inference or another ranking may have done so."""
        if isinstance(answer, GenrecError):
            return False
        return len(self.ranking.prefix) - int(answer["reuse"][0, 0]) == self.missing


class ScoresLater(AnswersLater, Generic[E]):
    """tokens, ticket, owner, candidates, codes, plan -> scores, the tokens that were reused, delta.

    Rankings that wait run as one pass where they can. The queue refuses what cannot be in time. It reads the weights
    once, and ends with them. A plan of the user's entry alone is answered at once, without candidates: `reuse` is a
    `PreInferReport` then.
    """

    def __init__(
        self, settings: Settings, streams: Sequence[Stream[E]], step: int = 1, most: int = 1
    ) -> None:
        """`streams`: as many passes as may run at once; `step`: tokens of an item of a history; `most`: rankings of a
        pass.
        """
        self._step = step
        budget_s, self._now = settings.rank_budget_ms / 1e3, streams[0]
        run = [partial(self._run, stream) for stream in streams]
        self._scheduler: Scheduler[Any] = Scheduler(
            run, 1, 0.0, most, patience_s=budget_s, roomy_s=SHARE * budget_s, alike=self._join
        )
        ahead = self._now()[1].ahead
        self._relay = Relay(ahead.jobs if ahead else None, self._scheduler, settings)

    def read_user(self, request: Tensors) -> tuple[NDArray[np.int32], Ticket]:
        """The user's tokens, as many as the ticket says, and the ticket. Raises InputError."""
        raise NotImplementedError

    def prefix_of(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Those of a user's tokens whose KV a ranking reuses."""
        return tokens

    def read_ranking(
        self, request: Tensors, owner: Owner, tokens: NDArray[np.int32], deadline_s: float | None
    ) -> Ranking:
        """What is asked about them; `deadline_s` on the monotonic clock. Raises InputError."""
        raise NotImplementedError

    def score(self, executor: E, asked: Sequence[Any]) -> list[Scored]:
        """What rankings `asked`; several only if `joins` says so."""
        raise NotImplementedError

    def joins(self, first: Any, other: Any) -> bool:
        """Whether what two rankings `asked` can be one pass."""
        return False

    def _join(self, first: Any, other: Any) -> bool:
        if not (isinstance(first, _Waiting) and isinstance(other, _Waiting)):
            return False
        return self.joins(first.ranking.asked, other.ranking.asked)

    def submit(self, request: Tensors, respond: Respond) -> None:
        """See `AnswersLater.submit`."""
        try:
            tokens, ticket = self.read_user(request)
            ticket.check_deadline("score_candidates")
            owner = read_owner(request)
            deadline_s = ticket.deadline_ns / 1e9 if ticket.deadline_ns else None
            nothing = self._nothing(self._now()[0])
            answer: Answer = nothing
            if int(check_tensor(request, "plan", np.int64, 3)[0]) == ONLY_USER:
                prefix = self.prefix_of(tokens)
                outcome, ready = self._relay.ask(owner.whose, prefix, deadline_s, owner.came_ns)
                at_risk_from = self._relay.at_risk_from(deadline_s, self._step)
                report = PreInferReport(outcome, len(prefix), ready, ticket.dropped, at_risk_from)
                answer = {**nothing, "reuse": np.array([report], np.int64)}
            elif len(tokens):
                ranking = self.read_ranking(request, owner, tokens, deadline_s)
                with self._missing(owner, ranking, deadline_s) as missing:
                    waiting = _Waiting(ranking, missing, ticket, respond)
                    self._scheduler.submit(waiting, missing + ranking.behind, deadline_s)
                return
        except GenrecError as error:
            answer = error
        respond(answer)

    def _missing(
        self, owner: Owner, ranking: Ranking, deadline_s: float | None
    ) -> AbstractContextManager[int]:
        """See `Relay.missing`. In an order that reads no user's KV all of it is computed, whatever is there."""
        if ranking.order not in READS_USER:
            return nullcontext(len(ranking.prefix))
        return self._relay.missing(owner.whose, ranking.prefix, deadline_s)

    def close(self) -> None:
        """Answer what is queued; then end the threads."""
        self._relay.close()
        self._scheduler.close()

    def _run(self, stream: Stream[E], batch: list[PreInference | IdleBatch | _Waiting]) -> bool:
        """Answered whatever happens. Whether the queue may learn from it: not from a part that had one core or was
        dropped, nor where a shape came first, nor where somebody came too late or found what he had counted: that takes
        no time.
        """
        first, (delta, executor) = batch[0], stream()
        if isinstance(first, PreInference):
            assert executor.ahead is not None
            return self._relay.run(executor.ahead, first)
        if isinstance(first, IdleBatch):
            first.of.run(cast(RankExecutor, executor), first)  # no other has items
            return True
        timely: list[_Waiting] = []
        for each in cast("list[_Waiting]", batch):
            try:
                each.ticket.check_deadline("score_candidates")
                timely.append(each)
            except GenrecError as error:
                self._answer(each, error)
        captured, as_counted = executor.captured, len(timely) == len(batch)
        for each, answer in zip(timely, self._answers(delta, executor, timely), strict=True):
            as_counted = as_counted and each.computed(answer)
            self._answer(each, answer)
        return as_counted and executor.captured == captured

    @staticmethod
    def _answer(waiting: _Waiting, answer: Answer) -> None:
        waiting.respond(answer)
        try:
            waiting.ranking.answered()
        except Exception:  # others of the pass are still to be answered
            log.exception("score_candidates: what follows an answer")

    def _answers(self, delta: int, executor: E, rankings: list[_Waiting]) -> list[Answer]:
        """Of each; whose fault an error is shows when each is alone."""
        try:
            return self._score(delta, executor, rankings) if rankings else []  # all were late
        except Exception as error:  # the thread must live on
            if len(rankings) > 1:
                return [answer for each in rankings for answer in self._answers(delta, executor, [each])]
            if isinstance(error, GenrecError):
                return [error]
            log.exception("score_candidates")
            return [internal("score_candidates", error)]

    def _score(self, delta: int, executor: E, rankings: list[_Waiting]) -> list[Answer]:
        relay, one_core = self._relay, executor.one_core
        prefixes = [len(each.ranking.prefix) for each in rankings]
        missing = rankings[0].missing
        if one_core and (len(rankings) > 1 or not relay.is_short(prefixes[0] - missing, missing)):
            one_core = None
        begun, captured = time.monotonic(), executor.captured
        scored = self.score(one_core or executor, [each.ranking.asked for each in rankings])
        seconds = time.monotonic() - begun
        users = [
            (reuse.user, prefix - reuse.user) for (_, reuse), prefix in zip(scored, prefixes, strict=True)
        ]
        if executor.captured == captured:
            (relay.one_core_cost if one_core else relay.cost).learn_together(users, seconds)
        answers: list[Answer] = []
        for each, (scores, reuse) in zip(rankings, scored, strict=True):
            if not np.isfinite(scores).all():
                answers.append(ModelError("scores"))
                continue
            count_ranking(each.ranking.order, reuse)
            of_it: Tensors = {"scores": scores[None], "reuse": np.array([reuse], np.int64)}
            answers.append({**self._nothing(delta), **of_it})
        return answers

    @staticmethod
    def _nothing(delta: int) -> Tensors:
        """Where nothing is scored."""
        return {
            "scores": np.zeros((1, 1), np.float32),
            "reuse": np.zeros((1, 4), np.int64),
            "delta": np.array([[delta]]),
        }
