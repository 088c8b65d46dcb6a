"""The step `generate` as Triton's dynamic batcher would have it: every batch it makes is one call of the generator.

Counted in requests, first come first served, whatever their lengths: what `genrec.schedule.scheduler` is compared with.
"""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.load import load_executors
from genrec.search.constraint import Constraint
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, excluded_of
from genrec.steps.prompts import read_prompt, spans, warm_up

MODEL = """
from genrec.settings import Settings
from genrec.triton.adapter import output_types, step_model
from perf.slo.plain_generate import PlainGenerate


class TritonPythonModel(step_model("generate")):
    def initialize(self, args):
        self.outputs = output_types(args["model_config"])
        self.step, self.deferred = PlainGenerate(Settings.from_environment()), None
"""


class PlainGenerate:
    """tokens, ticket, excluded -> paths and scores, the whole batch padded to its longest prompt.

    For well-formed requests only: one that is refused fails its batch.
    """

    def __init__(self, settings: Settings) -> None:
        config = self._config = load_config(settings.artifact)
        self._index = load_validity(settings.artifact, config)
        self._generator = load_executors(settings, config)[0]

        def once(shape: tuple[int, int]) -> None:
            self._generator.rehearse(*shape, self._index)

        warm_up([(1, spans(config)[0])], once)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `genrec.steps.Step.run`."""
        prompts = [read_prompt(request, self._config) for request in requests]
        tokens = np.zeros((len(prompts), max(len(each) for each, _ in prompts)), np.int64)
        for row, (prompt, _) in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        lengths = np.array([max(ticket.prompt_length, 1) for _, ticket in prompts], np.int64)
        blocked = [self._index.blocked(excluded_of(request)) for request in requests]
        constraints = [Constraint(self._index, each) for each in blocked]
        answers = self._generator.answers(tokens, lengths, constraints)
        return [{"paths": beams.paths[None], "scores": beams.scores[None]} for beams in answers]
