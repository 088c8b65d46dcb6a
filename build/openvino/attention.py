"""Attention as one operation, `XAttention` (build/plugin/openvino).

In OpenVINO's own nodes the scores are written out and read again by mask, exponential and sum, and both products are
thin; the operation keeps them in the cache. It runs attention of decodes, and causal attention of prefills.
"""

from __future__ import annotations

from build.openvino.graph import Graph, operation


def replace_attention(graph: Graph) -> None:
    """Every `XAttention`, which has six inputs, and every `CausalAttention`, which has the first three of them."""
    for node in graph.calls("XAttention", "CausalAttention"):
        graph.replace(node, "XAttention", operation("XAttention", list(node.input), node.output[0]))
