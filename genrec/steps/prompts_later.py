"""What the steps that compute prompts have in common: a queue that counts tokens and deadlines, and kept prompts.

Several steps read prompts (`generate`, `prefill_draft`); each says what else a request asks, and computes a batch.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.errors import GenrecError, InputError, ModelError, internal
from genrec.models.config import ModelConfig
from genrec.schedule.scheduler import Scheduler
from genrec.settings import Settings, padded_rows
from genrec.steps import Answer, Tensors
from genrec.steps.later import AnswersLater, Respond
from genrec.steps.owner import read_owner
from genrec.steps.prompts import read_prompt
from genrec.steps.ticket import Ticket

if TYPE_CHECKING:
    from genrec.engine.kept_prompts import KeptPrompts, Visit  # imports numba

# A request that finds a stream free goes at once: to wait for company makes it later at low loads, and at others no
# sooner than rounds differ (`genrec bench company`, docs/measured.md). While a stream is busy requests gather anyway.
WAIT_S = 0.0
# Of a batch, where nobody says how many. Those of a small model take milliseconds, half of them for being a batch. So
# more go into it, as long as it is over within ROOMY_S. In 25 ms a slow CPU computed eight of 64 requests, and was
# slower the more of them waited: Triton brings many, and those of later batches are answered one by one.
BATCH_TOKENS, ROOMY_S = 2048, 0.05
MOST_ROWS, CAPTURED_ROWS = 32, 8  # of a batch; where shapes are captured, so that there are few
log = logging.getLogger("genrec.prompts")


class Prompt(NamedTuple):
    """A request that waits or is computed: tokens int32[S], of which the ticket says how many are its history's."""

    tokens: NDArray[np.int32]
    ticket: Ticket
    asks: Any  # what else the step reads of it
    visit: Visit | None  # of whom its KV is kept for
    respond: Respond

    @property
    def history(self) -> NDArray[np.int32]:
        """Its tokens without padding."""
        return self.tokens[: self.ticket.prompt_length]


class PromptsLater(AnswersLater):
    """tokens, ticket, optional owner, and what else a step reads -> what it computes; an empty history at once."""

    def __init__(
        self, name: str, settings: Settings, config: ModelConfig, kept: KeptPrompts | None, behind: int,
        nothing: Tensors,
    ) -> None:  # fmt: skip
        """`behind`: tokens computed after each prompt, at most. `nothing` answers an empty history."""
        self._name, self._config, self._kept, self._behind, self._nothing = (
            name,
            config,
            kept,
            behind,
            nothing,
        )
        self._capacity = settings.batch_tokens or BATCH_TOKENS
        self._roomy_s = 0.0 if settings.batch_tokens else ROOMY_S

    def begin(
        self, runs: Sequence[Callable[[list[Prompt]], list[Answer]]], wait_s: float = WAIT_S, captures: bool = False
    ) -> None:  # fmt: skip
        """Take requests: one stream per function, which answers a batch. `captures`: only few shapes are fast."""
        self._scheduler: Scheduler[Prompt] = Scheduler(
            [partial(self._run, each) for each in runs], self._capacity, wait_s,
            CAPTURED_ROWS if captures else MOST_ROWS, roomy_s=0.0 if captures else self._roomy_s,
            lends=not captures and len(runs) == 1,  # a GPU goes on while the host prepares the next batch
            rows=padded_rows if captures else None,
        )  # fmt: skip

    @abstractmethod
    def asks(self, request: Tensors, ticket: Ticket) -> Any:
        """What else a request says. Raises GenrecError."""

    def submit(self, request: Tensors, respond: Respond) -> None:
        """See `AnswersLater.submit`."""
        try:
            tokens, ticket = read_prompt(request, self._config)
            ticket.check_deadline(self._name)
            asks = self.asks(request, ticket)
            owner = read_owner(request) if "owner" in request else None
            if ticket.prompt_length:
                visit = None
                if self._kept and owner:
                    visit = self._kept.visit(owner, tokens[: ticket.prompt_length])
                self._queue(Prompt(tokens, ticket, asks, visit, respond))
                return
        except GenrecError as error:
            respond(error)
            return
        respond(self._nothing)

    def _queue(self, prompt: Prompt) -> None:
        """Raises what `Scheduler.submit` does."""
        found = prompt.visit.found if prompt.visit else None
        tokens = len(prompt.tokens) - (found.tokens if found else 0)
        deadline_s = prompt.ticket.deadline_ns / 1e9 if prompt.ticket.deadline_ns else None
        try:
            self._scheduler.submit(prompt, tokens + self._behind, deadline_s)
        except BaseException:
            self._release(prompt)
            raise

    def _release(self, prompt: Prompt) -> None:
        if self._kept and prompt.visit:
            self._kept.release(prompt.visit)

    def _run(self, answers: Callable[[list[Prompt]], list[Answer]], prompts: list[Prompt]) -> bool:
        """A batch, answered whatever happens. Whether estimates may learn from it: not where somebody came too late."""
        in_time = [each for each in prompts if self._is_in_time(each)]
        if in_time:
            for prompt, answer in zip(in_time, self._rows(answers, in_time), strict=True):
                self._end(prompt, answer)
        return len(in_time) == len(prompts)

    def _rows(self, answers: Callable[[list[Prompt]], list[Answer]], prompts: list[Prompt]) -> list[Answer]:
        """Of each; whose fault an error is shows when each is alone."""
        try:
            return answers(prompts)
        except Exception as error:  # the thread must live on
            if len(prompts) > 1:
                return [row for each in prompts for row in self._rows(answers, [each])]
            if isinstance(error, InputError):  # what a request says was read before: this is what a pass gave
                return [ModelError(error.field)]
            if isinstance(error, GenrecError):
                return [error]
            log.exception(self._name)
            return [internal(self._name, error)]

    def _is_in_time(self, prompt: Prompt) -> bool:
        """If not, it is answered."""
        try:
            prompt.ticket.check_deadline(self._name)
        except GenrecError as error:
            self._end(prompt, error)
            return False
        return True

    def _end(self, prompt: Prompt, answer: Answer) -> None:
        self._release(prompt)
        prompt.respond(answer)

    def count(self, tokens: int, reused: int) -> None:
        """Tokens of prompts whose users may come again, and of these those that were there."""
        metrics.GENERATE_TOKENS.add(reused, kind="reused")
        metrics.GENERATE_TOKENS.add(tokens - reused, kind="computed")

    def look(self) -> None:
        """Count what the pool holds, where prompts are kept."""
        if self._kept:
            self._kept.look()

    def bringing(self) -> AbstractContextManager[None]:
        """See `AnswersLater.bringing`."""
        return self._scheduler.guest()

    def close(self) -> None:
        """Answer what is queued; then end the threads."""
        self._scheduler.close()
