"""Products with weights as operations of ours, `XLinear`, their weights in one file.

OpenVINO lays the weights out anew for every graph. Here they are laid out once, in a file that all graphs, streams and
processes map, and what surrounds a product (the norm before it, a residual, SwiGLU) is done while values are at hand.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from build.openvino.graph import Graph, attribute, operation
from genrec.engine.interface import WEIGHTS
from genrec.engine.openvino_graphs import WeightPlace
from genrec.kv.layout import LINE

BLOCK = 32  # columns, and rows, of what the operation computes at once
# Function -> which input is multiplied; its weights follow
PRODUCTS = {"Linear": 0, "AddLinear": 1, "SwiGLU": 0}


class Weights:
    """The tensors of all graphs that they were given to, by content, in one type: `f32` or `bf16`."""

    def __init__(self, kv_type: str) -> None:
        self.kv_type = kv_type
        self._tensors: dict[str, NDArray[Any]] = {}

    def input(self, graph: Graph, tensor: NDArray[Any]) -> str:
        """The tensor as an input of a graph; returns its name."""
        name = WEIGHTS + hashlib.sha256(tensor.data).hexdigest()[:16]
        self._tensors[name] = tensor
        kind = TensorProto.BFLOAT16 if self.kv_type == "bf16" else TensorProto.FLOAT
        return graph.weights(name, kind, tensor.ndim)

    def save(self, path: Path) -> dict[str, WeightPlace]:
        """Write the file, unless there is nothing for it; where each tensor is in it."""
        places: dict[str, WeightPlace] = {}
        if not self._tensors:
            return places
        with path.open("wb") as file:
            for name, tensor in self._tensors.items():
                file.write(bytes(-file.tell() % LINE))
                places[name] = WeightPlace(file.tell(), tensor.shape)
                file.write(tensor.data)
        return places


class Source(NamedTuple):
    """What is multiplied: x [..., K], normed with weights [K] unless `eps` is 0."""

    x: str
    norm: NDArray[np.float32] | None
    eps: float


def replace_products(graph: Graph, weights: Weights) -> None:
    """Every product whose sizes the operation can do, with the norm before it; norms that are then left over go."""
    for node in graph.calls(*PRODUCTS):
        place = PRODUCTS[node.op_type]
        matrices = [graph.array(name).T for name in node.input[place + 1 :]]
        if any(size % BLOCK for size in matrices[0].shape):
            continue
        source = _source(graph, node.input[place])
        if source.norm is not None:
            matrices = [each * source.norm for each in matrices]
        values = [
            source.x,
            weights.input(graph, laid_out(_beside(matrices), weights.kv_type)),
            *node.input[:place],
        ]
        after, wide = _after(graph, node), sum(len(each) for each in matrices)
        new = operation("XLinear", values, node.output[0], after=after, eps=source.eps, wide=wide)
        graph.replace(node, "XLinear", new)
    for norm in graph.calls("RMSNorm"):
        name = norm.output[0]
        if name not in graph.outputs and all(
            graph.is_replaced(each) and each.input[PRODUCTS[each.op_type]] == name
            for each in graph.readers(name)
        ):
            graph.replace(norm, "XLinear")


def replace_rows(graph: Graph, weights: Weights) -> None:
    """Rows of an embedding, whose table is a weight like others."""
    for node in graph.calls("Rows"):
        table = graph.array(node.input[0])
        values = [weights.input(graph, _values(table, weights.kv_type)), node.input[1]]
        graph.replace(node, "XRows", operation("XRows", values, node.output[0], wide=table.shape[1]))


def laid_out(weights: NDArray[np.float32], kv_type: str) -> NDArray[Any]:
    """[N, K] as right operands of products: [N / 32, K / 16 w, 2 x 16 words x 16 columns x w].

    A word is w = 1 value of f32, or 2 of bf16 as their bits.
    """
    (wide, deep), word = weights.shape, 2 if kv_type == "bf16" else 1
    # Block of columns, half of it, column; block of rows, word of it, row.
    parts = _values(weights, kv_type).reshape(wide // BLOCK, 2, 16, deep // (16 * word), 16, word)
    blocks = np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5))
    return blocks.reshape(wide // BLOCK, deep // (16 * word), -1)


def _source(graph: Graph, name: str) -> Source:
    norm = graph.maker(name)
    if norm is not None and norm in graph.calls("RMSNorm"):
        return Source(norm.input[0], graph.array(norm.input[1]), attribute(norm, "eps"))
    return Source(name, None, 0.0)


def _beside(matrices: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """One [N, K] as it is; gates and ups of SwiGLU in turns of half a block, so that both are at hand at once."""
    if len(matrices) == 1:
        return matrices[0]
    deep = matrices[0].shape[1]
    return np.stack([each.reshape(-1, BLOCK // 2, deep) for each in matrices], axis=1).reshape(-1, deep)


def _after(graph: Graph, node: NodeProto) -> str:
    """What the operation does with a product: see build/plugin/openvino/linear_op.hpp."""
    kinds = {"AddLinear": "add", "SwiGLU": "silu"}
    return kinds.get(node.op_type, "widen" if node.output[0] in graph.outputs else "nothing")


def _values(values: NDArray[np.float32], kv_type: str) -> NDArray[Any]:
    if kv_type == "f32":
        return np.ascontiguousarray(values, np.float32)
    return np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)).view(np.uint16)
