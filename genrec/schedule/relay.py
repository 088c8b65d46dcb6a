"""Users' prefixes computed one stage ahead of their rankings, in the rankings' own queue (RelayGR).

Both stand in one queue, whoever is due first in front, and a pre-inference goes back into it after every part. So a
ranking waits for a part at most, and nothing is computed ahead while something is due sooner.

What is short or has time is computed on one core. Two of them share a pass of 2,046 tokens in 17 ms instead of 31, but
spend 37 core-ms, as they wait for each other. Of 100 candidates over a prefix that is there they save half a
millisecond of five, and spend seven.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.engine.pre_infer import PartByPart, PreInference, PreInferences
from genrec.errors import GenrecError, QueueFull
from genrec.report import (
    ADMITTED,
    NO_HISTORY,
    NO_MEMORY,
    NO_TIME,
    NOT_NEEDED,
    PRE_INFER_OUTCOMES,
    READY,
    UNDER_WAY,
)
from genrec.schedule.admission import Admission
from genrec.schedule.cost import PassCost
from genrec.schedule.scheduler import Scheduler
from genrec.settings import MOST_VALUES, Settings

# Tokens that are computed before the queue is looked at again. Of 8,190 tokens, parts of 256 cost 16 % more core time
# than all at once (256 wide, 4 layers, AMX): each lays out the values of all before it. A first part holds all
# features of a user.
PARTS = (2048, 1536, 1024, 768, 640, 512, 384, 256)
WITH_REST = (
    1.25  # a part may be so much larger if nothing is left then: a pass of one token takes 1 ms, of 256 five
)
PATIENCE = 0.2  # of its budget that a ranking may wait for a part
MOST = 128  # that wait: rankings must find room in the queue
log = logging.getLogger("genrec.relay")


class Relay:
    """Admits pre-inferences whose rankings are at risk, and computes them part by part."""

    def __init__(
        self, jobs: PreInferences | None, scheduler: Scheduler[Any], settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`jobs`: none where nothing can be kept of a user."""
        self._jobs, self._scheduler, self._clock = jobs, scheduler, clock
        self._lease_s = settings.lease_ms / 1e3
        self._budget_s = settings.rank_budget_ms / 1e3
        self._most_s = self._budget_s * settings.pre_infer_risk / 100
        memory, share = settings.pool_user_mb << 20, settings.pre_infer_share / 100
        self._part_s = self._budget_s * PATIENCE
        self._admission = Admission(memory, self._lease_s, share * scheduler.streams, clock)
        self.cost, self.one_core_cost = PassCost(), PassCost()  # on all cores, on one
        if jobs:
            jobs.taken = self._taken

    def ask(
        self,
        owner: int | None,
        tokens: NDArray[np.int32],
        deadline_s: float | None,
        came_ns: int | None = None,
    ) -> tuple[int, int]:
        """One of `report.PRE_INFER_OUTCOMES`, and how many of a user's tokens int32[S] or [S, n] the pool has.

        `came_ns`: see `Users.kv_of`.
        """
        outcome, ready = self._ask(owner, tokens, deadline_s, came_ns)
        metrics.PRE_INFER.add(outcome=PRE_INFER_OUTCOMES[outcome])
        return outcome, ready

    def at_risk_from(self, deadline_s: float | None, step: int) -> int:
        """Items of `step` tokens each in the shortest history whose ranking is at risk, as the queue is; 0: not known.

        Clients need not announce shorter histories.
        """
        if self._jobs is None or not self._most_s:
            return 0
        fast = self.cost.tokens_of_ranking(self._most_s - self._waits_s(deadline_s))
        return 0 if math.isnan(fast) else int(min(fast / step, MOST_VALUES)) + 1

    def _due_s(self, deadline_s: float | None) -> float:
        return self._clock() + self._lease_s if deadline_s is None else deadline_s

    def _wanted_s(self, deadline_s: float | None) -> float:
        """When the ranking is expected; at once where nobody says when it is due."""
        return 0.0 if deadline_s is None else deadline_s - self._budget_s

    def _waits_s(self, deadline_s: float | None) -> float:
        """What the ranking would wait for what is queued now: much of it will be done when it comes."""
        until_s = max(self._wanted_s(deadline_s) - self._clock(), 0.0)
        return max(self._scheduler.ahead_s(self._due_s(deadline_s)) - until_s, 0.0)

    def _ask(
        self, owner: int | None, tokens: NDArray[np.int32], deadline_s: float | None, came_ns: int | None
    ) -> tuple[int, int]:
        if not len(tokens):
            return NO_HISTORY, 0
        if self._jobs is None:
            return NO_MEMORY, 0
        job, ready = self._jobs.new(owner, tokens, self._due_s(deadline_s))
        job.came_ns = came_ns
        if ready == len(tokens):
            return READY, ready
        left = len(tokens) - ready
        inline_s = self._waits_s(deadline_s) + self.cost.seconds(True, ready, left)
        if self._most_s and inline_s <= self._most_s:
            return NOT_NEEDED, ready
        there = max(ready, self._jobs.kept(job))
        job.expected_s = self.cost.seconds(False, there, len(tokens) - there)
        job.wanted_s = self._wanted_s(deadline_s)
        return self._admit(self._jobs, job), ready

    def _admit(self, jobs: PreInferences, job: PreInference) -> int:
        if jobs.joins(job, self._hasten):  # it needs neither room nor time of its own
            return UNDER_WAY
        if jobs.count >= MOST:
            return NO_TIME
        outcome = self._admission.admit(job.size, job.expected_s)
        if outcome != ADMITTED:
            return outcome
        try:
            if jobs.go_on(job, self._queue, new=True):
                return ADMITTED
            outcome = UNDER_WAY
        except GenrecError:  # the queue is full
            outcome = NO_TIME
            if not jobs.end(job):  # its ranking has taken it meanwhile, and ended it
                return outcome
        self._ended(job, made=False)
        return outcome

    def _ended(self, job: PreInference, made: bool) -> None:
        self._admission.end(job.size, made, job.expected_s - job.spent_s)

    def _hasten(self, job: PreInference) -> None:
        self._scheduler.hasten(job, job.due_s)

    def _taken(self, job: PreInference) -> None:
        """By its ranking: what is left of it is no longer ahead of anything."""
        self._scheduler.withdraw(job)
        self._ended(job, made=False)

    def missing(
        self, owner: int | None, tokens: NDArray[np.int32], deadline_s: float | None = None
    ) -> AbstractContextManager[int]:
        """Tokens of a user that his ranking, which comes now, has to compute. They are wanted until `deadline_s`; if it
        is refused within, they are not.
        """
        if self._jobs and len(tokens):
            return self._jobs.missing(owner, tokens, deadline_s)
        return nullcontext(len(tokens))

    def _queue(self, job: PreInference) -> None:
        self._scheduler.submit(job, self._part_of(job, self.cost), due_s=job.due_s)

    def _part_of(self, job: PreInference, cost: PassCost) -> int:
        """Tokens of the next part: the most that are computed fast enough for a ranking to wait."""
        left = len(job.tokens) - job.done
        fast = (each for each in PARTS if 0 < cost.seconds(False, job.done, each) <= self._part_s)
        part = next(fast, PARTS[-1])
        return left if left <= WITH_REST * part else part

    def _has_time(self, job: PreInference) -> bool:
        """Whether one core is enough: nobody waits, and it is done before its ranking comes."""
        left_s = self.one_core_cost.seconds(False, job.done, len(job.tokens) - job.done)
        return not self._scheduler.waiting and self._clock() + left_s < job.wanted_s

    def is_short(self, past: int, left: int) -> bool:
        """Whether one core ranks over so many tokens of a user as fast as a part is computed, while nobody waits."""
        if self._scheduler.waiting:
            return False
        # Of one core little may be known yet.
        longer = max(cost.seconds(True, past, left) for cost in (self.one_core_cost, self.cost))
        return 0 < longer <= self._part_s

    def run(self, parts: PartByPart, job: PreInference) -> bool:
        """The next part of one that comes from the queue; raises nothing. Whether its tokens took what they take: all
        of them were computed, and on all cores.
        """
        assert self._jobs is not None
        one_core = parts.has_one_core and self._has_time(job)
        all_computed = False
        try:
            end, all_computed = self._part(self._jobs, parts, job, one_core)
            if end is None and self._jobs.go_on(job, self._queue):
                return all_computed and not one_core
        except QueueFull:  # it has no room for the next part, or is closed: the ranking computes it all
            end = "no_time"
        except Exception:  # the thread must live on
            log.exception("pre_infer")
            end = "failed"
        if end and self._jobs.end(job):
            self._jobs.give_up(job)
            self._ended(job, made=False)
            metrics.PRE_INFERENCES.add(end=end)
        return all_computed and not one_core

    def _part(
        self, jobs: PreInferences, parts: PartByPart, job: PreInference, one_core: bool
    ) -> tuple[str | None, bool]:
        """How it ended, if it did and no ranking has taken it; whether all tokens of the part were computed."""
        with job.computing:
            if not jobs.holds(job):
                return None, False
            if not parts.makes(job):
                return "old_weights", False
            if self._clock() > max(job.due_s, job.awaited_s):
                return "late", False
            begun, cost = self._clock(), self.one_core_cost if one_core else self.cost
            part = self._part_of(job, cost)
            computed = parts.advance(job, part, one_core)
            self._learn(jobs, job, cost, computed or 0, self._clock() - begun)
            metrics.PRE_INFERRED_TOKENS.add(computed or 0)
            if computed is None:
                return "no_place", False
            if job.done == len(job.tokens) and jobs.end(job):
                jobs.publish(job)
                self._ended(job, made=True)
                metrics.PRE_INFERENCES.add(end="made")
        return None, computed == part

    def _learn(
        self, jobs: PreInferences, job: PreInference, cost: PassCost, computed: int, seconds: float
    ) -> None:
        """What a part took; a first one may also have copied what the pool had, which is little beside it.

        On one core nobody waited for it: it is charged what it would have taken on all.
        """
        past = job.done - computed
        spent_s = seconds if cost is self.cost else self.cost.seconds(False, past, computed)
        if not jobs.spend(job, spent_s):
            # Taken by a ranking on another stream: all but this part is charged.
            self._admission.end(0, made=False, unspent_s=-spent_s)
        if computed:
            cost.learn(False, past, computed, seconds)

    def close(self) -> None:
        """Give up what is not made."""
        if self._jobs is None:
            return
        for job in self._jobs.clear():
            with job.computing:
                self._jobs.give_up(job)
        self._jobs.close()
