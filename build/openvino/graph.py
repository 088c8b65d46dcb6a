"""An exported graph whose calls of functions are replaced by name, and what runs each of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from build.functions import calls, copied
from genrec.models.registry import DOMAIN

NODES = "nodes"  # runs what nothing else runs: a function's body, in OpenVINO's own nodes


class Graph:
    """Of an ONNX model. Nodes are looked up as they were at first, whatever was replaced since."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._nodes = [copied(node) for node in model.graph.node]
        self._makers = {name: node for node in self._nodes for name in node.output}
        self._readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in node.input:
                self._readers[name].append(node)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._inputs: dict[str, ValueInfoProto] = {}
        self._instead: dict[str, list[NodeProto]] = {}  # by the first output of what is replaced
        self._runs: dict[str, Counter[str]] = defaultdict(Counter)
        self.outputs = {port.name for port in model.graph.output}

    def calls(self, *functions: str) -> list[NodeProto]:
        """The nodes that call functions of these names."""
        return [node for node in self._nodes if node.domain == DOMAIN and node.op_type in functions]

    def maker(self, name: str) -> NodeProto | None:
        """The node that makes a tensor; None for inputs and constants."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that read a tensor."""
        return self._readers[name]

    def array(self, name: str) -> NDArray[np.float32]:
        """The values of a constant. KeyError for another tensor."""
        values: NDArray[np.float32] = numpy_helper.to_array(self._constants[name])
        return values

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """A new constant; returns its name."""
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def weights(self, name: str, kind: int, rank: int) -> str:
        """An input of `kind`, one of ONNX's types; returns its name.

        Its shape is left open: for one that it knows OpenVINO keeps memory of its own, of every graph.
        """
        self._inputs[name] = helper.make_tensor_value_info(name, kind, [None] * rank)
        return name

    def replace(self, node: NodeProto, runner: str, *by: NodeProto) -> None:
        """Put nodes in a node's place. If it calls a function, `runner` says what runs it from now on."""
        self._instead[node.output[0]] = list(by)
        if node.domain == DOMAIN:
            self._runs[node.op_type][runner] += 1

    def is_replaced(self, node: NodeProto) -> bool:
        """Whether `replace` was called with it."""
        return node.output[0] in self._instead

    def runs(self) -> dict[str, dict[str, int]]:
        """Function -> what runs it -> how many calls."""
        found = {name: Counter(self._runs[name]) for name in calls(self._model)}
        for name, count in calls(self._model).items():
            found[name][NODES] += count - found[name].total()
        return {name: dict(+found[name]) for name in sorted(found)}

    def replaced(self) -> ModelProto:
        """The model with all replacements, without what nobody reads any more. The model given is used up."""
        graph, needed = self._model.graph, set(self.outputs)
        nodes: list[NodeProto] = []
        for node in reversed(self._nodes):
            for each in reversed(self._instead.get(node.output[0], [node])):
                if needed.intersection(each.output):
                    needed.update(each.input)
                    nodes.append(each)
        del graph.node[:], graph.initializer[:]
        graph.node.extend(reversed(nodes))
        graph.initializer.extend(tensor for name, tensor in self._constants.items() if name in needed)
        graph.input.extend(self._inputs.values())
        return self._model


def operation(name: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    """A node that is one of our operations for OpenVINO (build/plugin/openvino)."""
    return helper.make_node(name, inputs, [output], domain=DOMAIN, **attributes)


def attribute(node: NodeProto, name: str) -> Any:
    """The value of a node's attribute. StopIteration when it has none of the name."""
    return helper.get_attribute_value(next(each for each in node.attribute if each.name == name))
