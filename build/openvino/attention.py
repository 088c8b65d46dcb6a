"""Attention as one operation, `XAttention`, and of discriminant tokens `XDiscriminant` (build/plugin/openvino).

In OpenVINO's own nodes the scores are written out and read again by mask, exponential and sum, and both products are
thin; the operation keeps them in the cache. The tokens of a past and those behind it are put together for it.
"""

from __future__ import annotations

from onnx import helper

from build.openvino.graph import Graph, attribute, operation


def replace_attention(graph: Graph) -> None:
    """Every call of a function that is attention."""
    for node in graph.calls("XAttention", "ItemAttention", "CausalAttention"):  # of six, six and three inputs
        graph.replace(node, "XAttention", operation("XAttention", list(node.input), node.output[0]))
    for node in graph.calls("PastAttention"):
        q, past_k, past_v, k, v = node.input
        whole = [f"{node.output[0]}_{kind}" for kind in "kv"]
        pairs = zip(whole, ((past_k, k), (past_v, v)), strict=True)
        joins = [helper.make_node("Concat", pair, [name], axis=2) for name, pair in pairs]
        graph.replace(node, "XAttention", *joins, operation("XAttention", [q, *whole], node.output[0]))
    for node in graph.calls("DiscriminantAttention"):
        layer = attribute(node, "layer")
        new = operation("XDiscriminant", list(node.input), node.output[0], layer=layer)
        graph.replace(node, "XDiscriminant", new)
