"""Prompt tokens to the last beams in one process: whole requests, batched by tokens (xGR, section 7)."""

from __future__ import annotations

import logging
import math
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.interface import Executor
from genrec.engine.kept_prompts import KeptPrompts, Owner
from genrec.engine.load import load_executors
from genrec.errors import GenrecError
from genrec.pool.users import UserEntry
from genrec.schedule.scheduler import Scheduler
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, learn_selection
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, check_tensor
from genrec.steps.later import AnswersLater, Respond
from genrec.steps.prompts import MAX_ROWS as CAPTURED_ROWS
from genrec.steps.prompts import read_owner, read_prompt, spans, warm_up
from genrec.steps.ticket import Ticket
from genrec.steps.versioned import Versioned

# A request that finds a stream free goes at once: to wait for company made it later at every load up to 70 % of the
# capacity (`genrec bench company`, docs/serving.md). While a stream is busy requests gather anyway.
WAIT_S = 0.0
# Of a batch, where nobody says how many. Those of a small model take milliseconds, half of them for being a batch. So
# more go into it, as long as it is over within ROOMY_S.
BATCH_TOKENS, ROOMY_S = 2048, 0.025
MOST_ROWS = 32
log = logging.getLogger("genrec.generate")


class _Prompt(NamedTuple):
    tokens: NDArray[np.int32]
    ticket: Ticket
    constraint: Constraint
    respond: Respond
    owner: Owner | None  # for whom the prompt's KV is kept
    found: UserEntry | None  # what the pool has of it, until it is released


class Generate(AnswersLater):
    """tokens, ticket, excluded -> paths (whole semantic IDs) and scores, ascending by path."""

    def __init__(self, settings: Settings, wait_s: float = WAIT_S) -> None:
        """`wait_s` is for comparisons. Raises ArtifactError."""
        self._config = load_config(settings.artifact)
        self._indices = Versioned(settings, "generate", partial(load_validity, config=self._config))
        learn_selection(self._indices.of(0), settings.beam_width)
        self._beam_tokens = settings.beam_width * (self._config.levels - 1)  # at most: hardly a pass has all
        executors = load_executors(settings, self._config)
        self._kept = KeptPrompts.of(settings, self._config)
        self._resumes = self._kept is not None and executors[0].resumes
        for executor in executors:
            shapes = (
                self._shapes(settings.batch_tokens or BATCH_TOKENS)
                if executor.captures
                else [(1, spans(self._config)[0])]
            )
            warm_up(shapes, partial(self._try, executor))
        run = [partial(self._generate, executor) for executor in executors]
        # A shape that nobody captured is slow where shapes are captured.
        captures = executors[0].captures
        self._scheduler: Scheduler[_Prompt] = Scheduler(
            run,
            settings.batch_tokens or BATCH_TOKENS,
            wait_s,
            CAPTURED_ROWS if captures else MOST_ROWS,
            roomy_s=0.0 if captures or settings.batch_tokens else ROOMY_S,
            lends=not captures and len(run) == 1,  # a GPU goes on while the host prepares the next batch
        )

    def submit(self, request: Tensors, respond: Respond) -> None:
        """See `AnswersLater.submit`."""
        try:
            tokens, ticket = read_prompt(request, self._config)
            ticket.check_deadline("generate")
            index = self._indices.of(ticket.version)
            blocked = index.blocked(check_tensor(request, "excluded", np.int32))
            if ticket.prompt_length:
                constraint, owner = Constraint(index, blocked, ticket.top_k), read_owner(request)
                found = self._find(owner, tokens[: ticket.prompt_length])
                self._queue(_Prompt(tokens, ticket, constraint, respond, owner, found))
                return
        except GenrecError as error:
            respond(error)
            return
        respond({"paths": np.zeros((1, 1), np.int64), "scores": np.zeros((1, 1), np.float32)})

    def _find(self, owner: Owner | None, tokens: NDArray[np.int32]) -> UserEntry | None:
        return self._kept.find(owner, tokens) if self._kept and self._resumes and owner else None

    def _queue(self, prompt: _Prompt) -> None:
        """Raises what `Scheduler.submit` does."""
        tokens = len(prompt.tokens) - (prompt.found.tokens if prompt.found else 0)
        deadline_s = prompt.ticket.deadline_ns / 1e9 if prompt.ticket.deadline_ns else None
        try:
            self._scheduler.submit(prompt, tokens + self._beam_tokens, deadline_s)
        except BaseException:
            self._release(prompt)
            raise

    def _release(self, prompt: _Prompt) -> None:
        if self._kept and prompt.found:
            self._kept.release(prompt.found)

    def look(self) -> None:
        """Count what the pool holds, where prompts are kept."""
        if self._kept:
            self._kept.look()

    def bringing(self) -> AbstractContextManager[None]:
        """See `AnswersLater.bringing`."""
        return self._scheduler.guest()

    def close(self) -> None:
        """Answer what is queued; then end the threads."""
        self._indices.close()
        self._scheduler.close()

    def _generate(self, executor: Executor, prompts: list[_Prompt]) -> bool:
        """A batch from the queue. Whether estimates may learn from it: not where somebody's time had passed."""
        in_time = [each for each in prompts if self._is_in_time(each)]
        if in_time:
            in_time.sort(key=lambda each: each.found is not None)  # as `pasts` of an executor wants it
            self._run(executor, in_time)
        return len(in_time) == len(prompts)

    def _is_in_time(self, prompt: _Prompt) -> bool:
        """If not, it is answered."""
        try:
            prompt.ticket.check_deadline("generate")
        except GenrecError as error:
            self._end(prompt, error)
            return False
        return True

    def _run(self, executor: Executor, prompts: list[_Prompt]) -> None:
        """One batch, answered whatever happens."""
        try:
            rows: list[Answer] = [_answer(beams) for beams in self._answers(executor, prompts)]
        except GenrecError as error:
            rows = [error] * len(prompts)
        except Exception as error:  # the thread must live on
            log.exception("generate")
            failure = f"generate: internal error ({type(error).__name__}), see the server's log"
            rows = [GenrecError(failure)] * len(prompts)
        for prompt, answer in zip(prompts, rows, strict=True):
            self._end(prompt, answer)

    def _end(self, prompt: _Prompt, answer: Answer) -> None:
        self._release(prompt)
        prompt.respond(answer)

    def _answers(self, executor: Executor, prompts: list[_Prompt]) -> list[Beams]:
        tokens = np.zeros((len(prompts), max(len(each.tokens) for each in prompts)), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt.tokens)] = prompt.tokens
        lengths = np.array([each.ticket.prompt_length for each in prompts], np.int64)
        constraints = [each.constraint for each in prompts]
        owners = [each.owner for each in prompts]
        if self._kept is None or not any(owners):
            return executor.answers(tokens, lengths, constraints)
        keep = partial(self._kept.keep, tokens, lengths, owners)
        pasts = [self._kept.past(each.found, each.ticket.prompt_length) for each in prompts if each.found]
        reused = sum(each.tokens for each in pasts)
        metrics.GENERATE_TOKENS.add(reused, kind="reused")
        metrics.GENERATE_TOKENS.add(int(lengths.sum()) - reused, kind="computed")
        return executor.answers(tokens, lengths, constraints, prompts=keep, pasts=pasts)

    def _shapes(self, capacity: int) -> list[tuple[int, int]]:
        """Batches that the scheduler makes, the largest first: what it leaves of the memory, the others fit into."""
        batches = product(range(1, CAPTURED_ROWS + 1), spans(self._config))
        fitting = [
            (rows, span)
            for rows, span in batches
            if rows == 1 or rows * (span + self._beam_tokens) <= capacity
        ]
        return sorted(fitting, key=math.prod, reverse=True)

    def _try(self, executor: Executor, shape: tuple[int, int]) -> None:
        past = self._kept.example() if self._kept and self._resumes else None
        executor.rehearse(*shape, self._indices.of(0), past)


def _answer(beams: Beams) -> Tensors:
    return {"paths": beams.paths[None], "scores": beams.scores[None]}
