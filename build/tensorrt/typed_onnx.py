"""A float32 ONNX graph as a strongly typed one in fp16 or bf16: TensorRT takes every type from the graph.

What needs the range or the digits of float32 keeps it: the squares and means of RMSNorm, and the angles of
RoPE (positions times frequencies). Casts are put where the two meet; `logits`, and the `states` of a draft, stay
float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from build.functions import copied, inlined

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
NUMPY_TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
WIDE = {"Pow", "ReduceMean", "Sqrt", "Reciprocal", "Cos", "Sin"}
FOLLOWS = {"Add", "Sub", "Mul", "Unsqueeze", "Reshape", "Cast"}  # wide where all that read them are
WIDE_OUTPUTS = {"logits", "states"}


def typed(model: ModelProto, kind: str) -> ModelProto:
    """A copy of `model` whose floats are `kind` (`f32`, `f16`, `bf16`), inputs and outputs included.

    Of its functions, attention of a decode and of discriminant tokens stays a node: a plugin computes it.
    """
    out = inlined(model, ["XAttention", "DiscriminantAttention"])
    if kind == "f32":
        return out
    graph, low = out.graph, TYPES[kind]
    floats = _float_tensors(out)
    wide = _wide_nodes(graph)
    del graph.value_info[:]
    made_wide = {name for number, node in enumerate(graph.node) if number in wide for name in node.output}
    made_wide |= _narrow_initializers(graph, wide, kind)
    nodes: list[NodeProto] = []
    casts: dict[tuple[str, int], str] = {}
    for number, node in enumerate(graph.node):
        wanted = TensorProto.FLOAT if number in wide else low
        for place, name in enumerate(node.input):
            given = TensorProto.FLOAT if name in made_wide else low
            if name in floats and given != wanted and node.op_type != "Cast":
                if (name, wanted) not in casts:
                    casts[name, wanted] = f"{name}_as_{wanted}"
                    nodes.append(helper.make_node("Cast", [name], [casts[name, wanted]], to=wanted))
                node.input[place] = casts[name, wanted]
        if node.op_type == "Cast" and node.output[0] in floats:
            node.attribute[0].i = wanted
        nodes.append(node)
    for port in graph.input:
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = low
    nodes += _type_outputs(graph, nodes, made_wide, low)
    copies = [copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return out


def _float_tensors(model: ModelProto) -> set[str]:
    """Names of all float32 tensors of the main graph. An XAttention node gives the type of its first input."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    graph = inferred.graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    known |= {v.name: v.data_type for v in graph.initializer}
    # In order, so what a custom node's inference left out is filled before it is read
    for node in graph.node:
        for name in node.output:
            if known.get(name, TensorProto.UNDEFINED) == TensorProto.UNDEFINED:
                known[name] = known[node.input[0]]
    return {name for name, kind in known.items() if kind == TensorProto.FLOAT}


def _wide_nodes(graph: onnx.GraphProto) -> set[int]:
    """Numbers of the nodes that compute in float32."""
    readers: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.node):
        for name in node.input:
            readers[name].append(number)
    outputs = {port.name for port in graph.output}
    wide: set[int] = set()
    for number in reversed(range(len(graph.node))):  # readers come first
        node = graph.node[number]
        after = [reader for name in node.output for reader in readers[name]]
        follows = node.op_type in FOLLOWS and after and not outputs & set(node.output)
        if node.op_type in WIDE or (follows and wide.issuperset(after)):
            wide.add(number)
    return wide


def _narrow_initializers(graph: onnx.GraphProto, wide: set[int], kind: str) -> set[str]:
    """Convert the initializers that a narrow node reads; names of those that stay float32."""
    narrow = {name for n, node in enumerate(graph.node) if n not in wide for name in node.input}
    stay = set()
    for number, tensor in enumerate(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        if tensor.name in narrow:
            most = ml_dtypes.finfo(NUMPY_TYPES[kind]).max  # a mask of -3.4e38 must stay finite
            values = numpy_helper.to_array(tensor).clip(-float(most), float(most)).astype(NUMPY_TYPES[kind])
            graph.initializer[number].CopyFrom(numpy_helper.from_array(values, tensor.name))
        else:
            stay.add(tensor.name)
    return stay


def rename(nodes: Iterable[NodeProto], old: str, new: str) -> None:
    """Let all nodes call a tensor by another name."""
    for node in nodes:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new


def _type_outputs(
    graph: onnx.GraphProto, nodes: list[NodeProto], made_wide: set[str], low: int
) -> list[NodeProto]:
    """Give every float output its type; returns the casts that this takes."""
    casts = []
    for port in graph.output:
        if port.type.tensor_type.elem_type != TensorProto.FLOAT:
            continue
        wanted = TensorProto.FLOAT if port.name in WIDE_OUTPUTS else low
        port.type.tensor_type.elem_type = wanted
        if wanted != (TensorProto.FLOAT if port.name in made_wide else low):
            inner = f"{port.name}_inner"
            rename(nodes, port.name, inner)
            casts.append(helper.make_node("Cast", [inner], [port.name], to=wanted))
    return casts
