"""Rotary positions: angles as tables, and queries and keys turned by them in one operation, `XRotate`.

In bf16 a position beyond 256 is no longer a whole number. OpenVINO would compute position x frequency in the arithmetic
of the graph; at position 1,000 a key then turned up to four radians too far. Cosines and sines themselves lose nothing
that other values of the graph do not.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from build.openvino.graph import Graph, attribute, operation

BEHIND = 64  # positions after the longest prompt: an item's levels, and those that a draft head reads at
HEADS_FIRST = [0, 2, 1, 3]  # [B, N, G, D] -> [B, G, N, D]


def tabulate_angles(graph: Graph, longest: int) -> None:
    """Cosines and sines of every position, looked up: for prompts of up to `longest` tokens."""
    for node in graph.calls("Angles"):
        positions, frequency = node.input
        angles = np.arange(longest + BEHIND, dtype=np.float32)[:, None] * graph.array(frequency)
        lookups = []
        for output, function in zip(node.output, (np.cos, np.sin), strict=True):
            table = graph.constant(f"{output}_table", function(angles))
            lookups.append(helper.make_node("Gather", [table, positions], [output], axis=0))
        graph.replace(node, "table", *lookups)


def replace_rotations(graph: Graph) -> None:
    """The split into heads, their norm, the turn, and the transpose behind them where nobody else reads them."""
    for node in graph.calls("Rotate", "NormRotate"):
        x, *norm, cosine, sine = node.input
        size = attribute(node, "heads")[-1]
        weights = norm[0] if norm else graph.constant(f"{node.output[0]}_ones", np.ones(size, np.float32))
        eps = attribute(node, "eps") if norm else 0.0
        transpose = _transpose_behind(graph, node)
        output, first = transpose.output[0] if transpose else node.output[0], transpose is not None
        new = operation("XRotate", [x, weights, cosine, sine], output, eps=eps, heads_first=int(first))
        graph.replace(node, "XRotate", new)
        if transpose:
            graph.replace(transpose, "XRotate")


def _transpose_behind(graph: Graph, node: NodeProto) -> NodeProto | None:
    name = node.output[0]
    behind = graph.readers(name)
    if len(behind) != 1 or name in graph.outputs or behind[0].op_type != "Transpose":
        return None
    return behind[0] if attribute(behind[0], "perm") == HEADS_FIRST else None
