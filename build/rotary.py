"""The angles of rotary positions as tables: in bf16 a position beyond 256 is no longer a whole number.

OpenVINO would compute position x frequency in the arithmetic of the graph; at position 1,000 a key then turned up to
four radians too far. Cosines and sines themselves lose nothing that other values of the graph do not.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

BEHIND = 64  # positions after the longest prompt: an item's levels, and those that a draft head reads at


def tabulate_angles(model: ov.Model, longest: int) -> None:
    """Cosines and sines of every position, looked up: for prompts of up to `longest` tokens. Changes the model."""
    tables = {"Cos": np.cos, "Sin": np.sin}
    for node in model.get_ordered_ops():
        if kind := tables.get(node.get_type_name()):
            angle = node.input_value(0).get_node()
            (frequency,) = (each.get_node() for each in angle.input_values() if _is(each, "Constant"))
            (position,) = (each.get_node() for each in angle.input_values() if not _is(each, "Constant"))
            whole = (
                position.input_value(0).get_node().input_value(0)
            )  # before it became a float, and [..., 1]
            rows = np.arange(longest + BEHIND, dtype=np.float32)[:, None] * frequency.data.reshape(1, -1)
            table = op.gather(op.constant(kind(rows)), whole, op.constant(0))
            for reader in list(node.output(0).get_target_inputs()):
                reader.replace_source_output(table.output(0))
    model.validate_nodes_and_infer_types()


def _is(value: ov.Output, kind: str) -> bool:
    return value.get_node().get_type_name() == kind
