"""What graphs of export/ look like to OpenVINO: nodes found by their neighbours, and put in place of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

HEADS_FIRST = [0, 2, 1, 3]  # [B, S, G, D] -> [B, G, S, D]
MOVING = {"Reshape", "Unsqueeze", "Squeeze", "Transpose", "Gather", "GatherElements", "Slice", "Concat"}


class Norm(NamedTuple):
    """x / sqrt(mean of squares + eps) * weights."""

    x: ov.Output
    weights: NDArray[np.float32]
    eps: float


def norm(value: ov.Output) -> Norm | None:
    """The norm that gives `value`, if one does."""
    for scaled, weights in both_ways(value.get_node()) if is_(value.get_node(), "Multiply") else ():
        if is_(weights, "Constant") and is_(scaled, "Multiply"):
            for divided, whole in both_ways(scaled):
                if (
                    is_(divided, "Divide")
                    and (root := divided.input_value(1).get_node())
                    and is_(root, "Sqrt")
                ):
                    (eps,) = constants(root.input_value(0).get_node())
                    return Norm(_output(scaled, whole), weights.data.reshape(-1), float(eps.data.item()))
    return None


def both_ways(node: ov.Node) -> Iterator[tuple[ov.Node, ov.Node]]:
    """The nodes before one of two inputs, in both orders; nothing for others."""
    if len(node.input_values()) == 2:
        a, b = (value.get_node() for value in node.input_values())
        yield a, b
        yield b, a


def is_(node: ov.Node, *kinds: str) -> bool:
    """Whether a node is of one of these types."""
    return node.get_type_name() in kinds


def constants(node: ov.Node) -> list[ov.Node]:
    """Those among the inputs of a node."""
    return [each.get_node() for each in node.input_values() if is_(each.get_node(), "Constant")]


def readers(node: ov.Node) -> list[ov.Node]:
    """The nodes that read a node's first output."""
    return [each.get_node() for each in node.output(0).get_target_inputs()]


def replace(node: ov.Node, by: ov.Node) -> None:
    """Whoever reads `node` reads `by`."""
    for reader in list(node.output(0).get_target_inputs()):
        reader.replace_source_output(by.output(0))


def keep_narrow(model: ov.Model) -> None:
    """What only moves values in bf16 moves them as they are; changes the model.

    Conversions to f32 go behind it, and there meet those back.
    """
    behind_moves: set[str] = set()  # conversions that were put there; types are inferred afterwards

    def widens(node: ov.Node) -> bool:
        return _widens(node) or node.get_friendly_name() in behind_moves

    for node in model.get_ordered_ops():
        count = len(node.input_values()) if is_(node, "Concat") else 1
        if is_(node, *MOVING) and all(widens(node.input_value(i).get_node()) for i in range(count)):
            for i in range(count):
                node.input(i).replace_source_output(node.input_value(i).get_node().input_value(0))
            behind = list(node.output(0).get_target_inputs())
            wide = op.convert(node, "f32")
            behind_moves.add(wide.get_friendly_name())
            for reader in behind:
                reader.replace_source_output(wide.output(0))
    model.validate_nodes_and_infer_types()
    for node in model.get_ordered_ops():
        before = node.input_value(0).get_node() if is_(node, "Convert") else None
        if before and _widens(before) and node.get_output_element_type(0) == ov.Type.bf16:
            for reader in list(node.output(0).get_target_inputs()):
                reader.replace_source_output(before.input_value(0))
    model.validate_nodes_and_infer_types()


def _widens(node: ov.Node) -> bool:
    return (
        is_(node, "Convert")
        and node.get_output_element_type(0) == ov.Type.f32
        and node.input_value(0).get_element_type() == ov.Type.bf16
    )


def _output(reader: ov.Node, node: ov.Node) -> ov.Output:
    return next(value for value in reader.input_values() if value.get_node() == node)
