"""ONNX to OpenVINO: with operations of ours in place, or their bodies inlined; in bf16 where the CPU computes in it.

OpenVINO lays a graph's weights out anew and keeps that copy for as long as the graph lives, so that prefill and L - 1
decode graphs are L copies. Within one graph, passes that read the same constant share it. So the passes of a large
generator become one graph, of which one pass at a time gets a batch that is not empty. Every node of the others still
costs a microsecond: 8 to 32 ms of a request's 120 to 330 at 31 M parameters, which is why smaller ones stay apart.
Where products are operations of ours, weights are inputs (build/openvino/linear.py), and there is nothing to share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
from openvino.preprocess import PrePostProcessor

from build.functions import load
from build.openvino.attention import replace_attention
from build.openvino.causal import InBlocks
from build.openvino.graph import Graph
from build.openvino.linear import Weights, replace_products, replace_rows
from build.openvino.narrow import keep_narrow
from build.openvino.operations import Operations, libraries
from build.openvino.read import Reader, read_inlined
from build.openvino.rotary import replace_rotations, tabulate_angles
from build.openvino.together import over_entries
from export.names import DECODE_ALL, RANK_ORDERS
from genrec.engine.instructions import chosen, sets_of
from genrec.engine.openvino_graphs import ALONE, PASSES, RANK_TOGETHER, RANKINGS, WEIGHTS_FILE
from genrec.progress import ticking

LARGE = 256 << 20  # bytes of weights from which on passes are one graph
SHARED = 1 << 16  # bytes of a constant that is worth finding twice


def build_openvino(onnx_folder: Path, out: Path, kv_type: str, longest: int, operation: bool) -> None:
    """Convert every graph of `onnx_folder` into `out`, a new folder, for prompts of up to `longest` tokens.

    `kv_type` is `f32` or `bf16` (KV tensors and arithmetic). Attention, products and rotations are one `operation` each
    (build/openvino/operations.py) or OpenVINO's own nodes; `engine.json` says which runs as what.
    Raises ArtifactError where operations cannot be compiled, or a graph is not what its model implies.
    """
    out.mkdir(parents=True)
    # Of OpenVINO's own nodes a pass that few requests can use is not worth another copy of the weights
    graphs = sorted(each for each in onnx_folder.glob("*.onnx") if operation or each.stem != DECODE_ALL)
    passes: dict[str, ov.Model] = {}
    runs: dict[str, dict[str, dict[str, int]]] = {}
    with ticking(f"engines, KV in {kv_type}", len(graphs), "graph") as bar:
        compiled = libraries(kv_type) if operation else {}
        for name, library in compiled.items():
            (out / name).write_bytes(library)
        here = chosen(out, kv_type)
        reader = Reader(Operations(out / here.library, kv_type)) if here else None
        weights = Weights(kv_type)
        bar.set_postfix_str(f"attention: {'one operation' if operation else 'nodes of OpenVINO'}")
        for path in graphs:
            graph = Graph(load(path))
            _replace(graph, longest, operation, weights)
            runs[path.stem] = graph.runs()
            for name, model in _read(path.stem, graph.replaced(), reader, longest, kv_type):
                if name in ALONE:
                    _save(model, out, name)
                else:
                    passes[name] = model
            bar.update()
        places = weights.save(out / WEIGHTS_FILE)
        if not operation and any(_bytes(model) > LARGE for model in passes.values()):
            passes = {PASSES: one_graph(passes)}
        for name, model in passes.items():
            _save(model, out, name)
    facts = {"kv_type": kv_type, "openvino": ov.get_version(), "weights": places, "runs": runs}
    facts["instruction_sets"] = [each.name for each in sets_of(kv_type) if each.library in compiled]
    (out / "engine.json").write_text(json.dumps(facts) + "\n")


def _replace(graph: Graph, longest: int, operation: bool, weights: Weights) -> None:
    """What is no nodes of OpenVINO in a graph, with operations or without them."""
    tabulate_angles(graph, longest)
    if operation:
        replace_attention(graph)
        replace_rotations(graph)
        replace_products(graph, weights)
        replace_rows(graph, weights)


def _read(
    name: str, onnx_model: onnx.ModelProto, reader: Reader | None, longest: int, kv_type: str
) -> Iterator[tuple[str, ov.Model]]:
    """Names and graphs of what the ONNX file `name` becomes; rankings in order `split` by operations become two."""
    made = {name: onnx_model}
    if reader and name == RANK_ORDERS["split"]:
        made = {name: over_entries(onnx_model, 1), RANK_TOGETHER: over_entries(onnx_model, RANKINGS)}
    for each, graph in made.items():
        model = reader.read(graph) if reader else read_inlined(graph, InBlocks(longest))
        model = _with_kv_type(model, kv_type)
        if reader and kv_type == "bf16":
            keep_narrow(model)
        yield each, model


def one_graph(models: dict[str, ov.Model]) -> ov.Model:
    """All models side by side, equal constants once; ports are named `<model>.<port>`. The models are used up."""
    constants: dict[tuple[str, tuple[int, ...], bytes], ov.Node] = {}
    inputs, outputs = [], []
    for name, model in models.items():
        for node in model.get_ops():
            if node.get_type_name() == "Constant" and node.get_byte_size() >= SHARED:
                kind, shape = str(node.get_element_type()), tuple(node.get_output_shape(0))
                key = (kind, shape, hashlib.sha256(np.ascontiguousarray(node.data)).digest())
                first = constants.setdefault(key, node)
                if first is not node:
                    for reader in list(node.output(0).get_target_inputs()):
                        reader.replace_source_output(first.output(0))
        inputs += model.get_parameters()
        outputs += model.results
        for port in (*model.inputs, *model.outputs):
            port.get_tensor().set_names({f"{name}.{port.any_name}"})
    return ov.Model(outputs, inputs)


def _save(model: ov.Model, out: Path, name: str) -> None:
    ov.save_model(model, str(out / f"{name}.xml"), compress_to_fp16=False)


def _bytes(model: ov.Model) -> int:
    return sum(node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant")


def _with_kv_type(model: ov.Model, kv_type: str) -> ov.Model:
    """The same graph with its KV inputs and outputs in `kv_type`."""
    if kv_type == "f32":
        return model
    process = PrePostProcessor(model)
    for port in model.inputs:
        if port.any_name.startswith(("shared_", "unshared_", "items")):
            process.input(port.any_name).tensor().set_element_type(ov.Type.bf16)
    for port in model.outputs:
        if port.any_name.startswith(("shared_", "new_")):
            process.output(port.any_name).tensor().set_element_type(ov.Type.bf16)
    return process.build()
