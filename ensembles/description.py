"""The nouns of an ensemble description: plain data that the renderer, the lint and the local runtime read.

Nothing here knows Triton's protobuf or an algorithm. `dims` leave out the batch axis, as Triton's configs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from genrec.errors import InputError

# BYTES is left out on purpose: slow in the Python backend (H8)
DTYPES = ("BOOL", "INT32", "INT64", "FP16", "BF16", "FP32")


@dataclass(frozen=True)
class Tensor:
    """A named tensor; -1 in `dims` is variable."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False


def optional(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same, each of which a request may leave out."""
    return tuple(replace(each, optional=True) for each in tensors)


@dataclass(frozen=True)
class WarmUp:
    """One warm-up request of zeros: dims per input, or the values of an input that must not be zero.

    Triton ends the server when a step answers its warm-up with an error, so values are for such inputs.
    """

    name: str
    dims: Mapping[str, tuple[int, ...]]
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A Python-backend model: one step of `genrec.steps`, which has the same name."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    warmups: tuple[WarmUp, ...] = ()
    instances: int = 1
    queue_delay_us: int = 0
    max_batch: int = 32


@dataclass(frozen=True)
class Step:
    """One call of `model`: its input name -> ensemble tensor, its output name -> ensemble tensor."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class Ensemble:
    """Models chained by named tensors, in an order in which every tensor is made before it is read."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    models: tuple[Model, ...]
    steps: tuple[Step, ...]
    max_batch: int = 32

    def __post_init__(self) -> None:
        check(self)


def check(ensemble: Ensemble) -> None:
    """Hold every step against its model and the tensors made before it. Raises InputError with the place."""
    models = {model.name: model for model in ensemble.models}
    made = {tensor.name: tensor for tensor in ensemble.inputs}
    _known_types(ensemble.name, ensemble.inputs + ensemble.outputs)
    for model in ensemble.models:
        _known_types(model.name, model.inputs + model.outputs)
    for number, step in enumerate(ensemble.steps):
        place = f"{ensemble.name}.steps[{number}]"
        if step.model not in models:
            raise InputError(place, f"model {step.model!r} is not described", ", ".join(models))
        _check_inputs(place, step, models[step.model], made)
        outputs = {tensor.name: tensor for tensor in models[step.model].outputs}
        for own, shared in step.outputs.items():
            if own not in outputs or shared in made:
                raise InputError(
                    place, f"{own} -> {shared}", "an output of the model, to a tensor not made before"
                )
            made[shared] = outputs[own]
    read = {name for step in ensemble.steps for name in step.inputs.values()}
    read |= {output.name for output in ensemble.outputs}
    if unused := [name for step in ensemble.steps for name in step.outputs.values() if name not in read]:
        raise InputError(ensemble.name, f"makes {', '.join(unused)}", "what a step or the answer reads")
    for output in ensemble.outputs:
        _same(f"{ensemble.name}.outputs", output, made.get(output.name), output.name)


def _known_types(place: str, tensors: tuple[Tensor, ...]) -> None:
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            raise InputError(f"{place}.{tensor.name}", f"has type {tensor.dtype!r}", ", ".join(DTYPES))


def _check_inputs(place: str, step: Step, model: Model, made: Mapping[str, Tensor]) -> None:
    inputs = {tensor.name: tensor for tensor in model.inputs}
    missing = [t.name for t in model.inputs if not t.optional and t.name not in step.inputs]
    unknown = [name for name in step.inputs if name not in inputs]
    if missing or unknown:
        raise InputError(
            place, f"leaves out {missing}, names {unknown}", f"inputs of {model.name}: {list(inputs)}"
        )
    for own, shared in step.inputs.items():
        _same(place, inputs[own], made.get(shared), shared)
        if made[shared].optional and not inputs[own].optional:
            raise InputError(place, f"feeds the optional {shared} to {own}", "an optional input")


def _same(place: str, wanted: Tensor, given: Tensor | None, name: str) -> None:
    if given is None:
        raise InputError(
            place, f"nothing makes {name!r}", "an ensemble input or an output of an earlier step"
        )
    fits = len(wanted.dims) == len(given.dims) and all(
        w in (-1, g) for w, g in zip(wanted.dims, given.dims, strict=True)
    )
    if wanted.dtype != given.dtype or not fits:  # -1 takes any size, as it does for Triton
        raise InputError(
            place,
            f"{name} is {given.dtype}{list(given.dims)}",
            f"{wanted.dtype}{list(wanted.dims)} for {wanted.name}",
        )
