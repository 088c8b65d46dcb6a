"""Products with weights as operations of ours, `XLinear`, in bf16 on CPUs with AMX, their weights in one file.

OpenVINO lays the weights out anew for every graph. Here they are laid out once, in a file that all graphs, streams and
processes map, and what surrounds a product (the norm before it, a residual, SwiGLU) is done while values are at hand.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from build.openvino.graph import Graph, attribute, operation
from genrec.engine.openvino import LINE, WEIGHTS, WeightPlace

BLOCK = 32  # columns, and rows, of what the operation computes at once
PRODUCTS = {
    "Linear": 0,
    "AddLinear": 1,
    "SwiGLU": 0,
}  # function -> which input is multiplied; its weights follow


class Weights:
    """The tensors of all graphs that they were given to, by content."""

    def __init__(self) -> None:
        self._tensors: dict[str, NDArray[np.uint16]] = {}

    def input(self, graph: Graph, tensor: NDArray[np.uint16]) -> str:
        """The tensor as an input of a graph; returns its name."""
        name = WEIGHTS + hashlib.sha256(tensor.data).hexdigest()[:16]
        self._tensors[name] = tensor
        return graph.weights(name, tensor.ndim)

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
        values = [source.x, weights.input(graph, laid_out(_beside(matrices))), *node.input[:place]]
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
        values = [weights.input(graph, _bf16(table)), node.input[1]]
        graph.replace(node, "XRows", operation("XRows", values, node.output[0], wide=table.shape[1]))


def laid_out(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[N, K] as the right operands of tiles: bf16 bits [N / 32, K / 32, 2 x 16 pairs x 16 columns x 2]."""
    wide, deep = weights.shape
    # Block of columns, half of it, column; block of rows, pair of it, row.
    parts = _bf16(weights).reshape(wide // BLOCK, 2, 16, deep // BLOCK, 16, 2)
    return np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5)).reshape(wide // BLOCK, deep // BLOCK, -1)


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


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)).view(np.uint16)
