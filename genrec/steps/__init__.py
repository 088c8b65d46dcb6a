"""The steps of a request. Each takes a batch of requests and answers each one, with tensors or with an error.

The same objects serve Triton (`genrec.triton.adapter`) and the local runtime (`ensembles.local`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genrec.errors import GenrecError, InputError, ModelError
from genrec.rank.kinds import HSTU_STEPS, hstu_of
from genrec.settings import MOST_VALUES, Settings
from genrec.target import target_of

Tensors = dict[str, NDArray[Any]]
Answer = Tensors | GenrecError
MOST_GROUPS = 1024  # that a list of a request names
MOST_EXCLUDED = (
    2 * (MOST_VALUES + MOST_GROUPS) + 3
)  # of a history, of a list beside it, and a choice of groups


class Step(Protocol):
    """One model of the ensemble."""

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """Answer every request of the batch, in order; tensors carry a leading axis of 1."""


class EachAlone:
    """A step that answers every request of a batch by itself; an error becomes the answer of its request alone."""

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        answers: list[Answer] = []
        for request in requests:
            try:
                answers.append(self.answer(request))
            except GenrecError as error:
                answers.append(error)
        return answers

    def answer(self, request: Tensors) -> Tensors:
        """One answer. Raises GenrecError."""
        raise NotImplementedError


STEPS = {
    "encode_history": "EncodeHistory",
    "prefill": "Prefill",
    "beam_search": "BeamSearch",
    "decode": "Decode",
    "prefill_draft": "PrefillDraft",
    "draft_beam": "DraftBeam",
    "validity_lookup": "ValidityLookup",
    "beam_search_of_logits": "BeamSearchOfLogits",
    "generate": "Generate",
    "encode_candidates": "EncodeCandidates",
    "encode_prefix": "EncodePrefix",
    "prefix_choice": "PrefixChoice",
    "score_candidates": "ScoreCandidates",
    "rank_lookup": "RankLookup",
    "encode_events": "EncodeEvents",
    "encode_events_ahead": "EncodeEventsAhead",
    "prefix_of_events": "PrefixOfEvents",
    "score_events": "ScoreEvents",
}


def load(name: str, settings: Settings) -> Step:
    """The step called `name`, its files read and checked. Raises InputError, ArtifactError."""
    if name not in STEPS:
        raise InputError("step", f"is {name!r}", f"one of {', '.join(STEPS)}")
    name = target_of(settings.target).steps.get(name, name)
    if name in HSTU_STEPS and hstu_of(settings.artifact, settings.ranker):
        name = HSTU_STEPS[name]
    step: Step = getattr(import_module(f"genrec.steps.{name}"), STEPS[name])(settings)
    return step


def check_tensor(
    request: Tensors,
    field: str,
    dtype: type[np.generic],
    count: int | None = None,
    most: int = MOST_VALUES,
) -> NDArray[Any]:
    """The one row of `field`, of `dtype` and of `count` values, or of up to `most`. Raises InputError."""
    if field not in request:
        raise InputError(field, "is missing", f"{np.dtype(dtype).name}[{'n' if count is None else count}]")
    tensor = np.asarray(request[field])
    if tensor.dtype != dtype:
        raise InputError(field, f"is of type {tensor.dtype}", np.dtype(dtype).name)
    if tensor.ndim != 2 or tensor.shape[0] != 1:
        raise InputError(
            field, f"has shape {list(tensor.shape)}", "one row per request; the server does the batching"
        )
    if count is not None and tensor.shape[1] != count:
        raise InputError(field, f"has {tensor.shape[1]} values", f"{count}")
    if count is None and tensor.shape[1] > most:
        raise InputError(field, f"has {tensor.shape[1]} values", f"at most {most}")
    if tensor.dtype.kind == "f" and np.isnan(tensor).any():
        raise InputError(field, "has NaN", "numbers")
    return tensor[0]


def excluded_of(request: Tensors) -> NDArray[np.int32]:
    """int32[any], as `genrec.catalogue.answerable.listed` reads them. Raises InputError."""
    return check_tensor(request, "excluded", np.int32, most=MOST_EXCLUDED)


@contextmanager
def logits_of_the_model() -> Iterator[None]:
    """Around what reads them: where they are no numbers, that is no fault of the request's."""
    try:
        yield
    except InputError as error:
        if error.field == "logits":
            raise ModelError("logits") from error
        raise
