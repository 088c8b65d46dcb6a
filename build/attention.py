"""The attention of OpenVINO's graphs as one operation, `XAttention` (build/plugin/openvino).

In OpenVINO's own nodes the scores are written out and read again by mask, exponential and sum, and both products are
thin; the operation keeps them in the cache. It replaces the node `genrec::XAttention` of a decode, and causal attention
in a prefill, of all layers that work for every position.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import onnx
import openvino as ov
from openvino import opset13 as op
from openvino.frontend.onnx import ConversionExtension
from openvino.utils.node_factory import NodeFactory

from build.causal import causal_attentions
from build.plugin.compile import FOLDER, run
from export.pipeline import DOMAIN
from genrec.engine.openvino import ATTENTION, can_run
from genrec.errors import ArtifactError

NAME = "XAttention"
SOURCES = [
    FOLDER / "openvino" / name for name in ("op.cpp", "head.hpp", "attention_f32.hpp", "attention_bf16.hpp")
]
# GCC 12 takes what its own intrinsics leave undefined for a mistake.
MACHINES = {"f32": ["-march=x86-64-v3"], "bf16": ["-march=sapphirerapids", "-Wno-maybe-uninitialized"]}
HEADS_FIRST = [0, 2, 1, 3]  # [B, S, G, D] -> [B, G, S, D]


def can_be_compiled(kv_type: str) -> bool:
    """Whether the operation is to be had here: for f32 with AVX2, for bf16 with AMX, and with a compiler."""
    return can_run(kv_type) and shutil.which("g++") is not None


@cache
def compiled(kv_type: str) -> bytes:
    """The library for values of `kv_type` and the OpenVINO that is installed, whose wheel has what is needed.

    Raises ArtifactError. A process that builds many engines compiles once.
    """
    root = Path(ov.__file__).parent
    flags = ["-O3", *MACHINES[kv_type], "-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC"]
    # Models may outlive the ov.Core that loaded their operation, and unloads it.
    flags += ["-Wl,-z,nodelete", "-isystem", str(root / "include"), f"-L{root / 'libs'}"]
    links = [f"-l:{next((root / 'libs').glob(f'{name}.so.*')).name}" for name in ("libopenvino", "libtbb")]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / ATTENTION
        run(["g++", str(SOURCES[0]), *flags, *links, "-o", str(library)])
        return library.read_bytes()


class Attention:
    """The compiled operation, and graphs that are read with it in place."""

    def __init__(self, library: Path, kv_type: str) -> None:
        """Writes `library`. Raises ArtifactError."""
        library.write_bytes(compiled(kv_type))
        self._core, self._nodes, self._kv_type = ov.Core(), NodeFactory(), kv_type
        try:
            self._core.add_extension(str(library))
        except RuntimeError as error:
            raise ArtifactError(library, f"OpenVINO cannot load it: {error}") from error
        self._core.add_extension(ConversionExtension(NAME, DOMAIN, self._of_decode))
        self._nodes.add_extension(str(library))

    def read(self, path: Path) -> ov.Model:
        """An exported graph."""
        graph = onnx.load(str(path))
        del graph.functions[:]  # the body of what is one operation here
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(graph, str(Path(folder) / path.name), save_as_external_data=True)
            model = self._core.read_model(str(Path(folder) / path.name))
        for layer in list(causal_attentions(model)):
            q, k, v = (_heads_first(value) for value in (layer.q, layer.k, layer.v))
            whole = self._create([q.input_value(0), k.output(0), v.output(0)])
            (back,) = layer.out.get_target_inputs()  # transposes to [B, S, H, D], as `whole` is already
            for reader in list(back.get_node().output(0).get_target_inputs()):
                reader.replace_source_output(whole.output(0))
        model.validate_nodes_and_infer_types()
        return model

    def _of_decode(self, node) -> list[ov.Output]:  # type: ignore[no-untyped-def]
        *tensors, length = (node.get_input(i) for i in range(6))
        return list(self._create(tensors, op.convert(length, "i32").output(0)).outputs())

    def _create(self, tensors: list[ov.Output], *length: ov.Output) -> ov.Node:
        """The operation between values of its type; outside it a graph is of f32, whatever it is computed in."""
        values = [op.convert(each, self._kv_type).output(0) for each in tensors]
        return op.convert(self._nodes.create(NAME, [*values, *length]), "f32")


def _heads_first(value: ov.Output) -> ov.Node:
    """The transpose that a product's operand comes from, by way of scaling and of repeating KV heads."""
    node = value.get_node()
    while not (
        node.get_type_name() == "Transpose" and list(node.input_value(1).get_node().data) == HEADS_FIRST
    ):
        node = node.input_value(0).get_node()
    return node
