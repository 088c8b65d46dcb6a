"""Write the `config.pbtxt` of every model and of the ensembles from their Python descriptions.

    python -m ensembles.render [--levels 3] [--out model_repository]

The text is printed from Triton's own protobuf message, so it parses by construction; a file that differs from
what this prints was edited by hand, and a test says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup

from ensembles.description import Ensemble, Model, Tensor, WarmUp
from ensembles.served import served
from genrec.errors import InputError

HEADER = "# rendered by ensembles/render.py from ensembles/{source}.py; edit that, not this\n"
DATA_TYPES = {
    "BOOL": "TYPE_BOOL",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP32": "TYPE_FP32",
    "FP16": "TYPE_FP16",
    "BF16": "TYPE_BF16",
}
NUMPY_TYPES = {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


def model_config(model: Model) -> ModelConfig:
    """Triton's configuration of one Python model."""
    config = ModelConfig(name=model.name, backend="python", max_batch_size=model.max_batch)
    # Requests differ in length; without ragged batches each unequal shape would run alone.
    config.input.extend(_input(tensor, ragged=-1 in tensor.dims) for tensor in model.inputs)
    for tensor in model.outputs:
        config.output.add(name=tensor.name, data_type=DATA_TYPES[tensor.dtype], dims=tensor.dims)
    config.instance_group.add(kind=ModelInstanceGroup.KIND_CPU, count=model.instances)
    config.dynamic_batching.SetInParent()
    if model.queue_delay_us:
        config.dynamic_batching.max_queue_delay_microseconds = model.queue_delay_us
    for warmup in model.warmups:
        _add_warmup(config, model, warmup)
    return config


def ensemble_config(ensemble: Ensemble) -> ModelConfig:
    """Triton's configuration of the ensemble itself."""
    config = ModelConfig(name=ensemble.name, platform="ensemble", max_batch_size=ensemble.max_batch)
    config.input.extend(_input(tensor, ragged=False) for tensor in ensemble.inputs)
    for tensor in ensemble.outputs:
        config.output.add(name=tensor.name, data_type=DATA_TYPES[tensor.dtype], dims=tensor.dims)
    for step in ensemble.steps:
        config.ensemble_scheduling.step.add(
            model_name=step.model, model_version=-1, input_map=step.inputs, output_map=step.outputs
        )
    return config


def _input(tensor: Tensor, ragged: bool) -> ModelInput:
    return ModelInput(
        name=tensor.name,
        data_type=DATA_TYPES[tensor.dtype],
        dims=tensor.dims,
        optional=tensor.optional,
        allow_ragged_batch=ragged,
    )


def _add_warmup(config: ModelConfig, model: Model, warmup: WarmUp) -> None:
    given = {**warmup.dims, **warmup.values}
    missing = [tensor.name for tensor in model.inputs if not tensor.optional and tensor.name not in given]
    if missing:
        raise InputError(f"{model.name}.{warmup.name}", f"leaves out {missing}", "every required input")
    sample = config.model_warmup.add(name=warmup.name, batch_size=1, count=1)
    types = {tensor.name: DATA_TYPES[tensor.dtype] for tensor in model.inputs}
    for name, dims in warmup.dims.items():
        sample.inputs[name].data_type = types[name]
        sample.inputs[name].dims.extend(dims)
        sample.inputs[name].zero_data = True
    for name, values in warmup.values.items():
        sample.inputs[name].data_type = types[name]
        sample.inputs[name].dims.append(len(values))
        sample.inputs[name].input_data_file = f"{warmup.name}.{name}"


def render(ensembles: Sequence[Ensemble], out: Path) -> list[Path]:
    """Write every file of the ensembles and their models under `out`; returns the paths written.

    A model that several ensembles use is written once, by the first that describes it. Raises InputError when
    they describe it differently, or on a warm-up that leaves a required input unfilled.
    """
    written: list[Path] = []
    known: dict[str, Model] = {}
    for ensemble in ensembles:
        fresh = [model for model in ensemble.models if model.name not in known]
        for model in ensemble.models:
            if known.setdefault(model.name, model) != model:
                raise InputError(ensemble.name, f"describes {model.name} anew", "one description per model")
        for config in (*(model_config(model) for model in fresh), ensemble_config(ensemble)):
            path = out / config.name / "config.pbtxt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEADER.format(source=ensemble.name) + text_format.MessageToString(config))
            written.append(path)
        for model in fresh:
            written += write_warmup_values(model, out / model.name / "warmup")
        version = out / ensemble.name / "1"  # Triton wants a version folder, and git keeps no empty one
        version.mkdir(exist_ok=True)
        (version / ".gitkeep").touch()
        written.append(version / ".gitkeep")
    return written


def write_warmup_values(model: Model, folder: Path) -> list[Path]:
    """Write the files of warm-up inputs that are not zeros; returns them."""
    types = {tensor.name: tensor.dtype for tensor in model.inputs}
    written = []
    for warmup in model.warmups:
        for name, values in warmup.values.items():
            folder.mkdir(exist_ok=True)
            path = folder / f"{warmup.name}.{name}"
            path.write_bytes(np.array(values, NUMPY_TYPES[types[name]]).tobytes())
            written.append(path)
    return written


def main() -> None:
    """Command line of the renderer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", type=int, default=3, help="codes in a semantic ID (default 3)")
    parser.add_argument(
        "--out", type=Path, default=Path("model_repository"), help="model repository to write"
    )
    arguments = parser.parse_args()
    for path in render(served(arguments.levels, draft=True, ranker=True), arguments.out):
        print(path)


if __name__ == "__main__":
    main()
