"""What goes before an exported graph's own nodes, where its inputs become those that Triton's ensemble has at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from build.functions import copied
from genrec.steps.ticket import Ticket

TICKET = len(Ticket._fields)
PROMPT_LENGTH = Ticket._fields.index("prompt_length")


class Prologue:
    """Nodes in the order in which they run, and the constants they read."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph, self.nodes = graph, list[NodeProto]()
        self._constants: set[str] = set()

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """The name of what one node makes."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: int | list[int]) -> str:
        """The name of an int64 constant."""
        name = f"served_{value}"
        if name not in self._constants:
            self._constants.add(name)
            self.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def within(self, numbers: str, most: str, output: str) -> str:
        """Integers from outside, brought into 0 to `most`."""
        risen = self.node("Max", [numbers, self.constant(0)], f"{output}_risen")
        return self.node("Min", [risen, most], output)

    def ticket(self, length: str) -> onnx.ValueInfoProto:
        """The input `ticket` int64 [B, 6]; `length` [B] is its prompt's, at least 1."""
        self.node("Gather", ["ticket", self.constant(PROMPT_LENGTH)], "served_length", axis=1)
        self.node("Max", ["served_length", self.constant(1)], length)
        return helper.make_tensor_value_info("ticket", TensorProto.INT64, ["B", TICKET])

    def replace_inputs(self, gone: list[str], new: list[onnx.ValueInfoProto]) -> None:
        """Put the nodes in place; `gone` inputs are made by them from the `new` ones."""
        kept = [port for port in self.graph.input if port.name not in gone]
        ports, nodes = [copied(port) for port in (*new, *kept)], [copied(node) for node in self.graph.node]
        del self.graph.input[:], self.graph.node[:]
        self.graph.input.extend(ports)
        self.graph.node.extend([*self.nodes, *nodes])
