"""Products with weights as operations of ours, `XLinear`, in bf16 on CPUs with AMX, their weights in one file.

OpenVINO lays the weights out anew for every graph. Here they are laid out once, in a file that all graphs, streams and
processes map, and what follows a product (a residual, SwiGLU) is done while the sums are in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from build.operations import Operations
from genrec.engine.openvino import LINE, WEIGHTS, Place

NAME = "XLinear"
BLOCK = 32  # columns, and rows, of what the operation computes at once
SMALL = 1 << 14  # bytes of a table that is not worth a place in the file
PASSING = {"Reshape", "Squeeze", "Unsqueeze"}


class Linears:
    """The weights of all graphs that were given to `replace`, by content."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._weights: dict[str, NDArray[np.uint16]] = {}

    def replace(self, model: ov.Model) -> None:
        """The same graph with its weights as inputs; changes the model."""
        inputs: dict[str, ov.Node] = {}
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Multiply" and (pair := _gated(node)):
                (x, gate), (_, up) = pair
                halves = [each.reshape(-1, BLOCK // 2, each.shape[1]) for each in (gate, up)]
                both = np.stack(halves, axis=1).reshape(-1, gate.shape[1])
                self._put(node, [x], self._input(inputs, laid_out(both)), "silu")
        for node in model.get_ordered_ops():
            if product := _product(node):
                x, weights = product
                if (sum_ := _only_reader(node)) and (other := _residual(sum_, node)):
                    self._put(sum_, [x], self._input(inputs, laid_out(weights)), "add", other)
                elif not _is_result(node):  # OpenVINO computes in bf16 what leads to a product of its own
                    self._put(node, [x], self._input(inputs, laid_out(weights)), "nothing")
            elif node.get_type_name() == "Gather" and _is_table(table := node.input_value(0).get_node()):
                rows = op.gather(
                    self._input(inputs, _bf16(table.data)), node.input_value(1), node.input_value(2)
                )
                _replace(node, op.convert(rows, "f32"))
        model.add_parameters(list(inputs.values()))
        model.validate_nodes_and_infer_types()

    def save(self, path: Path) -> dict[str, Place]:
        """Write the file, unless there is nothing for it; where each tensor is in it."""
        places: dict[str, Place] = {}
        if not self._weights:
            return places
        with path.open("wb") as file:
            for name, tensor in self._weights.items():
                file.write(bytes(-file.tell() % LINE))
                places[name] = Place(file.tell(), tensor.shape)
                file.write(tensor.data)
        return places

    def _put(
        self, node: ov.Node, x: list[ov.Output], weights: ov.Node, after: str, *added: ov.Output
    ) -> None:
        values = [*x, weights.output(0), *added]
        new = self._operations.create(NAME, values, after=after)
        new.set_friendly_name(node.get_friendly_name())
        _replace(node, new)

    def _input(self, inputs: dict[str, ov.Node], tensor: NDArray[np.uint16]) -> ov.Node:
        name = WEIGHTS + hashlib.sha256(tensor.data).hexdigest()[:16]
        self._weights[name] = tensor
        if name not in inputs:
            inputs[name] = op.parameter(tensor.shape, ov.Type.bf16, name)
            inputs[name].output(0).get_tensor().set_names({name})
        return inputs[name]


def laid_out(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[N, K] as the right operands of tiles: bf16 bits [N / 32, K / 32, 2 x 16 pairs x 16 columns x 2]."""
    wide, deep = weights.shape
    parts = _bf16(weights).reshape(
        wide // BLOCK, 2, 16, deep // BLOCK, 16, 2
    )  # block, half, column, block, pair, of it
    return np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5)).reshape(wide // BLOCK, deep // BLOCK, -1)


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)).view(np.uint16)


def _product(node: ov.Node) -> tuple[ov.Output, NDArray[np.float32]] | None:
    """x and the weights [N, K] of a product that the operation can do, and that is not one already."""
    if node.get_type_name() != "MatMul" or not node.output(0).get_target_inputs():
        return None
    weights, how = node.input_value(1).get_node(), node.get_attributes()
    if weights.get_type_name() != "Constant" or weights.data.ndim != 2 or how["transpose_a"]:
        return None
    values = weights.data if how["transpose_b"] else weights.data.T
    return (node.input_value(0), values) if all(size % BLOCK == 0 for size in values.shape) else None


def _gated(node: ov.Node) -> list[tuple[ov.Output, NDArray[np.float32]]] | None:
    """Both products of silu(x G) * (x U)."""
    for swish, up in _both_ways(node):
        if swish.get_type_name() == "Multiply":
            for gate, sigmoid in _both_ways(swish):
                if sigmoid.get_type_name() == "Sigmoid" and sigmoid.input_value(0).get_node() == gate:
                    pair = [product for each in (gate, up) if (product := _product(each))]
                    return pair if len(pair) == 2 else None
    return None


def _both_ways(node: ov.Node) -> Iterator[tuple[ov.Node, ov.Node]]:
    a, b = (value.get_node() for value in node.input_values())
    yield a, b
    yield b, a


def _only_reader(node: ov.Node) -> ov.Node | None:
    readers = [each.get_node() for each in node.output(0).get_target_inputs()]
    return readers[0] if len(readers) == 1 else None


def _residual(node: ov.Node, product: ov.Node) -> ov.Output | None:
    """What an addition adds to the product, when it has its shape: no bias."""
    if node.get_type_name() != "Add":
        return None
    (other,) = (each for each in node.input_values() if each.get_node() != product)
    return other if other.get_partial_shape() == product.output(0).get_partial_shape() else None


def _is_result(node: ov.Node) -> bool:
    reader = _only_reader(node)
    while reader and reader.get_type_name() in PASSING:
        reader = _only_reader(reader)
    return reader is not None and reader.get_type_name() == "Result"


def _is_table(node: ov.Node) -> bool:
    return (
        node.get_type_name() == "Constant"
        and node.output(0).get_element_type() == ov.Type.f32
        and node.get_byte_size() >= SMALL
    )


def _replace(node: ov.Node, by: ov.Node) -> None:
    for reader in list(node.output(0).get_target_inputs()):
        reader.replace_source_output(by.output(0))
