"""The attention of OpenVINO's graphs as one operation, `XAttention` (build/plugin/openvino).

In OpenVINO's own nodes the scores are written out and read again by mask, exponential and sum, and both products are
thin; the operation keeps them in the cache. It replaces the node `genrec::XAttention` of a decode, and causal attention
in a prefill, of all layers that work for every position.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import openvino as ov
from openvino import opset13 as op
from openvino.frontend.onnx import ConversionExtension

from build.openvino.causal import causal_attentions
from build.openvino.operations import Operations
from build.openvino.patterns import HEADS_FIRST, replace
from export.generator import DOMAIN

NAME = "XAttention"


class Attention:
    """Exported graphs, read with the operation in place."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        operations.core.add_extension(ConversionExtension(NAME, DOMAIN, self._of_decode))

    def read(self, path: Path) -> ov.Model:
        """An exported graph."""
        graph = onnx.load(str(path))
        del graph.functions[:]  # the body of what is one operation here
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(graph, str(Path(folder) / path.name), save_as_external_data=True)
            model = self._operations.core.read_model(str(Path(folder) / path.name))
        for layer in list(causal_attentions(model)):
            q, k, v = (_heads_first(value) for value in (layer.q, layer.k, layer.v))
            whole = self._operations.create(NAME, [q.input_value(0), k.output(0), v.output(0)])
            (back,) = layer.out.get_target_inputs()  # transposes to [B, S, H, D], as `whole` is already
            replace(back.get_node(), whole)
        model.validate_nodes_and_infer_types()
        return model

    def _of_decode(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        *tensors, length = (node.get_input(i) for i in range(6))
        return list(self._operations.create(NAME, tensors, op.convert(length, "i32").output(0)).outputs())


def _heads_first(value: ov.Output) -> ov.Node:
    """The transpose that a product's operand comes from, by way of scaling and of repeating KV heads."""
    node = value.get_node()
    while not (
        node.get_type_name() == "Transpose" and list(node.input_value(1).get_node().data) == HEADS_FIRST
    ):
        node = node.input_value(0).get_node()
    return node
