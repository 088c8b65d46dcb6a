"""Rotary positions: angles as tables, and queries and keys turned by them in one operation, `XRotate`.

In bf16 a position beyond 256 is no longer a whole number. OpenVINO would compute position x frequency in the arithmetic
of the graph; at position 1,000 a key then turned up to four radians too far. Cosines and sines themselves lose nothing
that other values of the graph do not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as op

from build.openvino.operations import Operations
from build.openvino.patterns import HEADS_FIRST, Norm, constants, is_, norm, readers, replace

BEHIND = 64  # positions after the longest prompt: an item's levels, and those that a draft head reads at


def tabulate_angles(model: ov.Model, longest: int) -> None:
    """Cosines and sines of every position, looked up: for prompts of up to `longest` tokens. Changes the model."""
    tables = {"Cos": np.cos, "Sin": np.sin}
    for node in model.get_ordered_ops():
        if kind := tables.get(node.get_type_name()):
            angle = node.input_value(0).get_node()
            (frequency,) = constants(angle)
            (position,) = (each.get_node() for each in angle.input_values() if each.get_node() != frequency)
            whole = (
                position.input_value(0).get_node().input_value(0)
            )  # before it became a float, and [..., 1]
            rows = np.arange(longest + BEHIND, dtype=np.float32)[:, None] * frequency.data.reshape(1, -1)
            replace(node, op.gather(op.constant(kind(rows)), whole, op.constant(0)))
    model.validate_nodes_and_infer_types()


class Rotation(NamedTuple):
    """Heads [B, N, H, D] of x [B, N, H * D], normed or not, turned by tables [..., D / 2]."""

    x: ov.Output
    norm: Norm | None
    size: int
    cosine: ov.Output
    sine: ov.Output


def rotate_at_once(model: ov.Model, operations: Operations) -> None:
    """Norm, halves, four products and the transpose of keys, each one operation; changes the model."""
    for node in model.get_ordered_ops():
        if found := _rotation(node):
            weights = found.norm.weights if found.norm else np.ones(found.size, np.float32)
            others = [op.constant(weights).output(0), found.cosine, found.sine]
            back = [each for each in readers(node) if is_(each, "Transpose")]
            first = bool(back) and list(back[0].input_value(1).get_node().data) == HEADS_FIRST
            alone = first and len(readers(node)) == 1
            eps = found.norm.eps if found.norm else 0.0
            new = operations.create("XRotate", [found.x], *others, eps=eps, heads_first=alone)
            replace(back[0] if alone else node, new)
    model.validate_nodes_and_infer_types()


def _rotation(node: ov.Node) -> Rotation | None:
    """(a cos - b sin, b cos + a sin) of the halves a, b of every head."""
    if not is_(node, "Concat") or len(node.input_values()) != 2:
        return None
    less, more = (value.get_node() for value in node.input_values())
    if not (is_(less, "Subtract") and is_(more, "Add")):
        return None
    products = [value.get_node() for value in less.input_values()]
    split = products[0].input_value(0).get_node()
    tables = [each.input_value(1).get_node() for each in products]
    if not (is_(split, "Split") and all(is_(each, "Unsqueeze") for each in tables)):
        return None
    before = norm(split.input_value(0))
    heads = (before.x if before else split.input_value(0)).get_node()
    if not is_(heads, "Reshape"):
        return None
    size = node.output(0).get_partial_shape()[-1].get_length()
    return Rotation(heads.input_value(0), before, size, tables[0].input_value(0), tables[1].input_value(0))
