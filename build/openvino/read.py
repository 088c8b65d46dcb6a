"""ONNX with nodes of ours to OpenVINO's graphs: operations as they are, the bodies of other functions inlined."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import onnx
import openvino as ov
from onnx import ModelProto
from openvino import opset13 as op
from openvino.frontend.onnx import ConversionExtension

from build.functions import inlined
from build.openvino.causal import InBlocks
from build.openvino.operations import Operations
from genrec.errors import ArtifactError
from genrec.models.registry import DOMAIN

OPERATIONS = ("XAttention", "XPast", "XBehindItems", "XDiscriminant", "XLinear", "XRotate", "XRows")


class Reader:
    """Reads graphs with operations of ours in place; of one, OpenVINO keeps the core."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        makers = (
            self._attention, self._past, self._behind_items, self._discriminant, self._linear, self._rotate, self._rows
        )  # fmt: skip
        for name, make in zip(OPERATIONS, makers, strict=True):
            operations.core.add_extension(ConversionExtension(name, DOMAIN, make))

    def read(self, model: ModelProto) -> ov.Model:
        """A graph. Raises ArtifactError when one of its operations did not come through."""
        wanted = Counter(node.op_type for node in model.graph.node if node.op_type in OPERATIONS)
        found = _read(inlined(model, OPERATIONS), self._operations.core)
        kinds = Counter(node.get_type_name() for node in found.get_ops())
        for name in OPERATIONS:
            if kinds[name] != wanted[name]:
                raise ArtifactError(
                    model.graph.name, f"{wanted[name]} {name} became {kinds[name]} in OpenVINO"
                )
        return found

    def _attention(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        """Of q, k, v; or of these, own k and v, and the lengths of prompts."""
        tensors = [node.get_input(n) for n in range(node.get_input_size())]
        lengths = [op.convert(each, "i32").output(0) for each in tensors[5:]]
        return self._made("XAttention", tensors[:5], *lengths)

    def _past(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        *tensors, length = (node.get_input(n) for n in range(6))
        return self._made("XPast", tensors, op.convert(length, "i32").output(0))

    def _behind_items(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        *tensors, rows = (node.get_input(n) for n in range(5))
        return self._made(
            "XBehindItems", tensors, op.convert(rows, "i32").output(0), layer=node.get_attribute("layer")
        )

    def _discriminant(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        """Over k, v, or over whole entries of users."""
        inputs = [node.get_input(n) for n in range(node.get_input_size())]
        q, *users, items, rows, lengths, q_item = inputs
        others = [op.convert(each, "i32").output(0) for each in (rows, lengths)]
        how = {name: node.get_attribute(name) for name in ("layer", "reach")}
        return self._made("XDiscriminant", [q, items, q_item, *users], *others, **how)

    def _linear(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        tensors = [node.get_input(n) for n in range(node.get_input_size())]
        how = {name: node.get_attribute(name) for name in ("after", "eps", "wide")}
        return self._made("XLinear", tensors, **how)

    def _rotate(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        x, *others = (node.get_input(n) for n in range(4))
        first = bool(node.get_attribute("heads_first"))
        return self._made("XRotate", [x], *others, eps=node.get_attribute("eps"), heads_first=first)

    def _rows(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        ids = op.convert(node.get_input(1), "i32").output(0)
        return self._made("XRows", [node.get_input(0)], ids, wide=node.get_attribute("wide"))

    def _made(
        self, name: str, tensors: list[ov.Output], *others: ov.Output, **how: object
    ) -> list[ov.Output]:
        return list(self._operations.create(name, tensors, *others, **how).outputs())


def read_inlined(model: ModelProto, attend: InBlocks) -> ov.Model:
    """A graph in OpenVINO's own nodes. Its causal attention is what `attend` makes."""

    def causal(node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        return list(attend(*(node.get_input(n) for n in range(3))).outputs())

    core = ov.Core()
    core.add_extension(ConversionExtension("CausalAttention", DOMAIN, causal))
    return _read(inlined(model, ["CausalAttention"]), core)


def _read(model: ModelProto, core: ov.Core) -> ov.Model:
    """OpenVINO refuses model-local functions, and reads large graphs from files only."""
    del model.functions[:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        onnx.save(model, str(path), save_as_external_data=True)
        return core.read_model(str(path))
