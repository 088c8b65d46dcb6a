"""Attention as one operation, `XAttention`, of discriminant tokens `XDiscriminant` (build/plugin/openvino).

In OpenVINO's own nodes the scores are written out and read again by mask, exponential and sum, and both products are
thin; the operation keeps them in the cache. Of a past, `XPast` reads as much as counts, where it lies.
"""

from __future__ import annotations

from build.openvino.graph import Graph, attribute, operation


def replace_attention(graph: Graph) -> None:
    """Every call of a function that is attention."""
    for node in graph.calls("XAttention", "ItemAttention", "CausalAttention"):  # of six, six and three inputs
        graph.replace(node, "XAttention", operation("XAttention", list(node.input), node.output[0]))
    for node in graph.calls("PastAttention"):
        graph.replace(node, "XPast", operation("XPast", list(node.input), node.output[0]))
    for function, name, attributes in (
        ("BehindItemsAttention", "XBehindItems", ("layer",)),
        ("DiscriminantAttention", "XDiscriminant", ("layer", "reach")),
    ):
        for node in graph.calls(function):
            how = {each: attribute(node, each) for each in attributes}
            graph.replace(node, name, operation(name, list(node.input), node.output[0], **how))
