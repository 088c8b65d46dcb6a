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
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from build.openvino.operations import Operations
from build.openvino.patterns import both_ways, is_, norm, readers, replace
from genrec.engine.openvino import LINE, WEIGHTS, WeightPlace

BLOCK = 32  # columns, and rows, of what the operation computes at once
PASSING = ("Reshape", "Squeeze", "Unsqueeze")


class Product(NamedTuple):
    """x [..., K] normed, unless `eps` is 0, times weights [N, K]."""

    x: ov.Output
    weights: NDArray[np.float32]
    eps: float


class Linears:
    """The weights of all graphs that were given to `replace`, by content."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._weights: dict[str, NDArray[np.uint16]] = {}

    def replace(self, model: ov.Model) -> None:
        """The same graph with its weights as inputs; changes the model."""
        inputs: dict[str, ov.Node] = {}
        for node in model.get_ordered_ops():
            if is_(node, "Multiply") and (pair := _gated(node)):
                gate, up = pair
                halves = [each.weights.reshape(-1, BLOCK // 2, each.weights.shape[1]) for each in pair]
                both = np.stack(halves, axis=1).reshape(-1, up.weights.shape[1])
                self._put(node, gate._replace(weights=both), inputs, "silu")
        for node in model.get_ordered_ops():
            if product := _product(node):
                if other := _residual(node):
                    (sum_,) = readers(node)
                    self._put(sum_, product, inputs, "add", other)
                else:
                    self._put(node, product, inputs, "widen" if _is_result(node) else "nothing")
            elif is_(node, "Gather") and (table := _table(node)) is not None:
                ids = op.convert(node.input_value(1), "i32").output(0)
                rows = self._input(inputs, _bf16(table))
                replace(node, self._operations.create("XRows", [rows], ids, wide=table.shape[1]))
        model.add_parameters(list(inputs.values()))
        model.validate_nodes_and_infer_types()

    def save(self, path: Path) -> dict[str, WeightPlace]:
        """Write the file, unless there is nothing for it; where each tensor is in it."""
        places: dict[str, WeightPlace] = {}
        if not self._weights:
            return places
        with path.open("wb") as file:
            for name, tensor in self._weights.items():
                file.write(bytes(-file.tell() % LINE))
                places[name] = WeightPlace(file.tell(), tensor.shape)
                file.write(tensor.data)
        return places

    def _put(
        self, node: ov.Node, product: Product, inputs: dict[str, ov.Node], after: str, *added: ov.Output
    ) -> None:
        weights = self._input(inputs, laid_out(product.weights))
        values = [product.x, weights, *added]
        wide = product.weights.shape[0]
        new = self._operations.create("XLinear", values, after=after, eps=product.eps, wide=wide)
        replace(node, new)

    def _input(self, inputs: dict[str, ov.Node], tensor: NDArray[np.uint16]) -> ov.Output:
        name = WEIGHTS + hashlib.sha256(tensor.data).hexdigest()[:16]
        self._weights[name] = tensor
        if name not in inputs:
            # Its shape is left open: for one that it knows OpenVINO keeps memory of its own, of every graph.
            shape = ov.PartialShape([-1] * tensor.ndim)
            inputs[name] = op.parameter(shape, ov.Type.bf16, name)
            inputs[name].output(0).get_tensor().set_names({name})
        return inputs[name].output(0)


def laid_out(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[N, K] as the right operands of tiles: bf16 bits [N / 32, K / 32, 2 x 16 pairs x 16 columns x 2]."""
    wide, deep = weights.shape
    # Block of columns, half of it, column; block of rows, pair of it, row.
    parts = _bf16(weights).reshape(wide // BLOCK, 2, 16, deep // BLOCK, 16, 2)
    return np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5)).reshape(wide // BLOCK, deep // BLOCK, -1)


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)).view(np.uint16)


def _table(gather: ov.Node) -> NDArray[np.float32] | None:
    """An embedding [V, N]."""
    table = gather.input_value(0).get_node()
    if is_(table, "Constant") and table.data.ndim == 2 and table.data.dtype == np.float32:
        return table.data  # type: ignore[no-any-return]
    return None


def _product(node: ov.Node) -> Product | None:
    """A product that the operation can do, the norm before it included."""
    if not is_(node, "MatMul") or not readers(node):
        return None
    weights, how = node.input_value(1).get_node(), node.get_attributes()
    if not is_(weights, "Constant") or weights.data.ndim != 2 or how["transpose_a"]:
        return None
    values = weights.data if how["transpose_b"] else weights.data.T
    if any(size % BLOCK for size in values.shape):
        return None
    before = norm(node.input_value(0))
    if before and len(before.weights) == values.shape[1]:
        return Product(before.x, values * before.weights, before.eps)
    return Product(node.input_value(0), values, 0.0)


def _gated(node: ov.Node) -> list[Product] | None:
    """Both products of silu(x G) * (x U)."""
    for swish, up in both_ways(node):
        if is_(swish, "Multiply"):
            for gate, sigmoid in both_ways(swish):
                if is_(sigmoid, "Sigmoid") and sigmoid.input_value(0).get_node() == gate:
                    pair = [product for each in (gate, up) if (product := _product(each))]
                    same = len(pair) == 2 and pair[0].x.get_node() == pair[1].x.get_node()
                    return pair if same else None
    return None


def _residual(product: ov.Node) -> ov.Output | None:
    """What is added to a product that nobody else reads, when it has its shape: no bias."""
    behind = readers(product)
    if len(behind) != 1 or not is_(behind[0], "Add"):
        return None
    (other,) = (each for each in behind[0].input_values() if each.get_node() != product)
    return other if other.get_partial_shape() == product.output(0).get_partial_shape() else None


def _is_result(node: ov.Node) -> bool:
    behind = readers(node)
    while len(behind) == 1 and is_(behind[0], *PASSING):
        behind = readers(behind[0])
    return len(behind) == 1 and is_(behind[0], "Result")
