"""The steps of a request. Each takes a batch of requests and answers each one, with tensors or with an error.

The same objects serve Triton (`genrec.triton.adapter`) and the local runtime (`ensembles.local`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genrec.config import MAX_BEAM_WIDTH
from genrec.errors import GenrecError, InputError
from genrec.memory import give_back

Tensors = dict[str, NDArray[Any]]
Answer = Tensors | GenrecError


class Step(Protocol):
    """One model of the ensemble."""

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """Answer every request of the batch, in order; tensors carry a leading axis of 1."""


@dataclass(frozen=True)
class Settings:
    """What a deployment fixes for all its requests."""

    artifact: Path
    arena: Path
    beam_width: int = 128
    target: str = "openvino"
    threads: int = 0  # of an engine process; 0 is all cores
    streams: int = 1  # batches of whole requests that run at once; they share the threads
    batch_tokens: int = 2048  # of a batch of whole requests: prompts, and a token of every beam and level
    verify: str = "every"  # where drafts are held against the catalogue: at every level, or the last
    swap: Path | None = None  # where processes agree on a catalogue version; None: the one at the start stays

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise InputError("beam_width", f"is {self.beam_width}", f"1 to {MAX_BEAM_WIDTH}")
        for field in ("streams", "batch_tokens"):
            if getattr(self, field) < 1:
                raise InputError(field, f"is {getattr(self, field)}", "at least 1")
        if self.verify not in ("every", "last"):
            raise InputError("verify", f"is {self.verify!r}", "every, last")

    @classmethod
    def from_environment(cls) -> Settings:
        """Read GENREC_ARTIFACT, GENREC_ARENA, and GENREC_ before the name of every other field."""
        try:
            return cls(
                Path(os.environ["GENREC_ARTIFACT"]),
                Path(os.environ["GENREC_ARENA"]),
                int(os.environ.get("GENREC_BEAM_WIDTH", "128")),
                os.environ.get("GENREC_TARGET", "openvino"),
                int(os.environ.get("GENREC_THREADS", "0")),
                int(os.environ.get("GENREC_STREAMS", "1")),
                int(os.environ.get("GENREC_BATCH_TOKENS", "2048")),
                os.environ.get("GENREC_VERIFY", "every"),
                Path(os.environ["GENREC_SWAP"]) if os.environ.get("GENREC_SWAP") else None,
            )
        except KeyError as error:
            raise InputError(str(error.args[0]), "is not set", "the launcher sets it") from error
        except ValueError as error:
            raise InputError("environment", str(error), "whole numbers") from error

    def environment(self) -> dict[str, str]:
        """The same as `from_environment` reads it."""
        return {
            "GENREC_ARTIFACT": str(self.artifact),
            "GENREC_ARENA": str(self.arena),
            "GENREC_BEAM_WIDTH": str(self.beam_width),
            "GENREC_TARGET": self.target,
            "GENREC_THREADS": str(self.threads),
            "GENREC_STREAMS": str(self.streams),
            "GENREC_BATCH_TOKENS": str(self.batch_tokens),
            "GENREC_VERIFY": self.verify,
            "GENREC_SWAP": str(self.swap or ""),
        }


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
}
# A target may have a step of its own where the edge into it has another type (ensembles/tensorrt.py).
OF_TARGET = {("tensorrt", "beam_search"): "beam_search_of_logits"}


def load(name: str, settings: Settings) -> Step:
    """The step called `name`, its files read and checked. Raises InputError, ArtifactError."""
    if name not in STEPS:
        raise InputError("step", f"is {name!r}", f"one of {', '.join(STEPS)}")
    name = OF_TARGET.get((settings.target, name), name)
    step: Step = getattr(import_module(f"genrec.steps.{name}"), STEPS[name])(settings)
    give_back()
    return step


def answer_each(requests: list[Tensors], answer: Callable[[Tensors], Tensors]) -> list[Answer]:
    """`answer` every request by itself; an error becomes the answer of its request alone."""
    answers: list[Answer] = []
    for request in requests:
        try:
            answers.append(answer(request))
        except GenrecError as error:
            answers.append(error)
    return answers


def check_tensor(
    request: Tensors, field: str, dtype: type[np.generic], count: int | None = None
) -> NDArray[Any]:
    """The one row of `field`, of `dtype` and of `count` values (any when None). Raises InputError."""
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
    if tensor.dtype.kind == "f" and np.isnan(tensor).any():
        raise InputError(field, "has NaN", "numbers")
    return tensor[0]
