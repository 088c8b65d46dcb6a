"""The functions in an exported graph: nodes of domain `genrec` that a target replaces by name, or inlines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, inliner, numpy_helper

from genrec.errors import ArtifactError
from genrec.models.registry import DOMAIN, FUNCTIONS


def load(path: Path) -> ModelProto:
    """An exported graph, which calls each function as often as its model implies. Raises ArtifactError."""
    try:
        model = onnx.load(str(path))
        declared = {each.key: each.value for each in model.metadata_props}[FUNCTIONS]
        implied = Counter(json.loads(declared))
    except (OSError, KeyError, ValueError) as error:
        raise ArtifactError(
            path, f"does not say which functions it calls: `genrec export` it ({error!r})"
        ) from error
    found = calls(model)
    for name in sorted(implied.keys() | found.keys()):
        if implied[name] != found[name]:
            raise ArtifactError(
                path, f"calls the function {name} {found[name]} times, its model implies {implied[name]}"
            )
    return model


def calls(model: ModelProto) -> Counter[str]:
    """How often the graph calls each function."""
    return Counter(node.op_type for node in model.graph.node if node.domain == DOMAIN)


def inlined(model: ModelProto, kept: Collection[str] = ()) -> ModelProto:
    """The same graph with the bodies of all functions but `kept` in their places; its constants are initializers."""
    names = [(each.domain, each.name) for each in model.functions if each.name not in kept]
    out = inliner.inline_selected_functions(model, names)
    nodes = [node for node in out.graph.node if node.op_type != "Constant"]
    for node in out.graph.node:
        if node.op_type == "Constant":
            (value,) = node.attribute
            tensor = value.t if value.name == "value" else _tensor(value)
            tensor.name = node.output[0]
            out.graph.initializer.append(tensor)
    copies = [copied(node) for node in nodes]
    del out.graph.node[:]
    out.graph.node.extend(copies)
    return out


def _tensor(value: onnx.AttributeProto) -> onnx.TensorProto:
    """What a Constant's attribute `value_float`, `value_ints` ... holds."""
    kind = np.float32 if value.name.startswith("value_float") else np.int64
    return numpy_helper.from_array(np.array(helper.get_attribute_value(value), kind))


def copied(message):  # type: ignore[no-untyped-def]
    """A message of its own: those of a graph are gone with their places in it."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
