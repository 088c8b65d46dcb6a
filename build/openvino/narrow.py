"""Values in bf16 that are only moved are moved as they are."""

from __future__ import annotations

import openvino as ov
from openvino import opset13 as op

MOVING = {"Reshape", "Unsqueeze", "Squeeze", "Transpose", "Gather", "GatherElements", "Slice", "Concat"}


def keep_narrow(model: ov.Model) -> None:
    """What only moves values in bf16 moves them as they are; changes the model.

    Conversions to f32 go behind it, and there meet those back.
    """
    behind_moves: set[str] = set()  # conversions that were put there; types are inferred afterwards

    def widens(node: ov.Node) -> bool:
        return _widens(node) or node.get_friendly_name() in behind_moves

    for node in model.get_ordered_ops():
        count = len(node.input_values()) if node.get_type_name() == "Concat" else 1
        if node.get_type_name() in MOVING and all(
            widens(node.input_value(i).get_node()) for i in range(count)
        ):
            for i in range(count):
                node.input(i).replace_source_output(node.input_value(i).get_node().input_value(0))
            behind = list(node.output(0).get_target_inputs())
            wide = op.convert(node, "f32")
            behind_moves.add(wide.get_friendly_name())
            for reader in behind:
                reader.replace_source_output(wide.output(0))
    model.validate_nodes_and_infer_types()
    for node in model.get_ordered_ops():
        before = node.input_value(0).get_node() if node.get_type_name() == "Convert" else None
        if before and _widens(before) and node.get_output_element_type(0) == ov.Type.bf16:
            for reader in list(node.output(0).get_target_inputs()):
                reader.replace_source_output(before.input_value(0))
    model.validate_nodes_and_infer_types()


def _widens(node: ov.Node) -> bool:
    return (
        node.get_type_name() == "Convert"
        and node.get_output_element_type(0) == ov.Type.f32
        and node.input_value(0).get_element_type() == ov.Type.bf16
    )
