"""Prompt tokens to the last beams in one process: whole requests, batched by tokens (xGR, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.interface import Executor
from genrec.engine.kept_prompts import KeptPrompts
from genrec.engine.load import load_executors
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, learn_selection
from genrec.settings import Settings, padded_rows
from genrec.steps import Answer, Tensors, excluded_of
from genrec.steps.prompts import spans, warm_up
from genrec.steps.prompts_later import CAPTURED_ROWS, WAIT_S, Prompt, PromptsLater
from genrec.steps.ticket import Ticket
from genrec.steps.versioned import Versioned


class Generate(PromptsLater):
    """tokens, ticket, excluded -> paths (whole semantic IDs) and scores, ascending by path."""

    def __init__(self, settings: Settings, wait_s: float = WAIT_S) -> None:
        """`wait_s` is for comparisons. Raises ArtifactError."""
        config = load_config(settings.artifact, settings.target)
        self._indices = Versioned(settings, "generate", partial(load_validity, config=config))
        learn_selection(self._indices.of(0), settings.beam_width)
        executors = self._executors = load_executors(settings, config)
        self._resumes, captures = executors[0].resumes, executors[0].captures
        beam_tokens = settings.beam_width * (config.levels - 1)  # at most: hardly a pass has all
        nothing: Tensors = {"paths": np.zeros((1, 1), np.int64), "scores": np.zeros((1, 1), np.float32)}
        kept = KeptPrompts.of(settings, config, self._resumes)
        super().__init__("generate", settings, config, kept, beam_tokens, nothing)
        for executor in executors:
            shapes = self._shapes() if captures else [(1, spans(config)[0])]
            warm_up(shapes, partial(self._try, executor))
            if captures and kept:
                token, free = np.zeros((1, 1), np.int64), [Constraint(self._indices.of(0))]
                with suppress(InputError):  # logits of this prompt alone may be no numbers
                    executor.answers(token, np.ones(1, np.int64), free, prompts=kept.rehearse)
        self.begin([partial(self._answers, each) for each in executors], wait_s, captures)

    def _run(self, answers: Callable[[list[Prompt]], list[Answer]], prompts: list[Prompt]) -> bool:
        """See there; nothing may be learnt where a shape came first, or first since a catalogue outgrew its room."""
        captured = sum(each.captured for each in self._executors)
        return super()._run(answers, prompts) and captured == sum(each.captured for each in self._executors)

    def asks(self, request: Tensors, ticket: Ticket) -> Constraint:
        """See `PromptsLater.asks`."""
        index = self._indices.of(ticket.version)
        return Constraint(index, index.blocked(excluded_of(request)), ticket.top_k)

    def close(self) -> None:
        """See `PromptsLater.close`."""
        self._indices.close()
        super().close()

    def _answers(self, executor: Executor, prompts: list[Prompt]) -> list[Answer]:
        """One batch; those that go on behind a past come last, as an executor wants it."""
        order = sorted(range(len(prompts)), key=lambda at: _is_found(prompts[at]))
        beams = dict(zip(order, self._beams(executor, [prompts[at] for at in order]), strict=True))
        return [_answer(beams[at]) for at in range(len(prompts))]

    def _beams(self, executor: Executor, prompts: list[Prompt]) -> list[Beams]:
        tokens = np.zeros((len(prompts), max(len(each.tokens) for each in prompts)), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt.tokens)] = prompt.tokens
        lengths = np.array([each.ticket.prompt_length for each in prompts], np.int64)
        constraints, visits = [each.asks for each in prompts], [each.visit for each in prompts]
        if self._kept is None or not any(visits):
            return executor.answers(tokens, lengths, constraints)
        kept, keep = self._kept, partial(self._kept.keep, tokens, lengths, visits)
        visited = [(each.visit, each.ticket.prompt_length) for each in prompts if each.visit]
        pasts = [kept.past(visit, length) for visit, length in visited if visit.found]
        beams = executor.answers(tokens, lengths, constraints, prompts=keep, pasts=pasts)
        # Only now: where a batch fails, each of it is computed alone.
        counted = sum(length for visit, length in visited if kept.keeps(visit.owner, length))
        self.count(counted, sum(each.tokens for each in pasts))
        return beams

    def _shapes(self) -> list[tuple[int, int]]:
        """Batches that the scheduler makes, the largest first: what it leaves of the memory, the others fit into."""
        batches = product(range(1, CAPTURED_ROWS + 1), spans(self._config))
        fitting = [
            (rows, span)
            for rows, span in batches
            if rows == 1 or rows * (span + self._behind) <= self._capacity
        ]
        return sorted(fitting, key=lambda shape: padded_rows(shape[0]) * shape[1], reverse=True)

    def _try(self, executor: Executor, shape: tuple[int, int]) -> None:
        past = self._kept.example() if self._kept and self._resumes else None
        executor.rehearse(*shape, self._indices.of(0), past)


def _is_found(prompt: Prompt) -> bool:
    return prompt.visit is not None and prompt.visit.found is not None


def _answer(beams: Beams) -> Tensors:
    return {"paths": beams.paths[None], "scores": beams.scores[None]}
