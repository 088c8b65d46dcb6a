"""One torch module to one ONNX file, whose nodes of domain `genrec` are functions with their bodies in the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxscript.optimizer
import torch
from torch.export import Dim

from export.functions import bodies
from export.names import OPSET
from genrec.errors import ArtifactError
from genrec.models.registry import DOMAIN, FUNCTIONS

NO_LIMIT = 1 << 40  # elements
EXAMPLE = 11  # tokens of the longest example that a graph is traced with


class Traced(NamedTuple):
    """A module, an example of its inputs, their dynamic axes, and the names of inputs and outputs."""

    module: torch.nn.Module
    example: tuple[Any, ...]
    axes: tuple[Any, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]


def tokens_axis(name: str, most: int) -> Dim:
    """An axis of up to `most` tokens, and no shorter than examples are: torch refuses one that is beyond its axis."""
    return Dim(name, max=max(most, EXAMPLE))


@torch.no_grad()
def write(graph: Traced, functions: dict[str, int], path: Path) -> Path:
    """Write `path`, with weights beside it in `<name>.onnx.data`; returns it.

    `functions` says how often the model calls each function. It goes into the file, for whoever replaces them by name.
    Raises ArtifactError when the graph has another number of one.
    """
    program = torch.onnx.export(
        graph.module.eval(), graph.example, dynamo=True, dynamic_shapes=graph.axes, input_names=graph.inputs,
        output_names=graph.outputs, opset_version=OPSET, verbose=False, optimize=True,
    )  # fmt: skip
    assert program is not None  # as it is with dynamo
    # Weights that are part of others, or parts put together, become weights of their own, whatever their size.
    onnxscript.optimizer.fold_constants(program.model, input_size_limit=NO_LIMIT, output_size_limit=NO_LIMIT)
    program.optimize()  # and what they were made of goes
    model = program.model_proto
    found = Counter(node.op_type for node in model.graph.node if node.domain == DOMAIN)
    if found != Counter(functions):
        raise ArtifactError(path, f"calls the functions {dict(found)}, the model implies {functions}")
    model.functions.extend(bodies(set(found)))
    if DOMAIN not in {each.domain for each in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    onnx.helper.set_model_props(model, {FUNCTIONS: json.dumps(functions)})
    onnx.checker.check_model(model, full_check=False)
    weights = path.with_name(path.name + ".data")
    onnx.save(model, str(path), save_as_external_data=True, location=weights.name, size_threshold=1024)
    if weights.exists():  # a small graph has none
        weights.chmod(0o644)  # onnx writes 0600; who builds or serves may be someone else
    return path
