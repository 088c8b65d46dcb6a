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
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
from onnx import inliner
from openvino.preprocess import PrePostProcessor

from build.openvino.attention import Attention
from build.openvino.causal import in_blocks
from build.openvino.linear import Linears
from build.openvino.operations import Operations
from build.openvino.patterns import keep_narrow
from build.openvino.rotary import rotate_at_once, tabulate_angles
from genrec.engine.openvino import OPERATIONS, PASSES, WEIGHTS_FILE
from genrec.progress import ticking

LARGE = 256 << 20  # bytes of weights from which on passes are one graph
SHARED = 1 << 16  # bytes of a constant that is worth finding twice


def kv_type_of_this_cpu() -> str:
    """`bf16` on CPUs with AMX or AVX512-BF16, else `f32`."""
    return "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def build_openvino(onnx_folder: Path, out: Path, kv_type: str, longest: int, operation: bool) -> None:
    """Convert every graph of `onnx_folder` into `out`, for prompts of up to `longest` tokens.

    `kv_type` is `f32` or `bf16` (KV tensors and arithmetic). Attention, and in bf16 products and rotations, are one
    `operation` each (build/openvino/operations.py) or OpenVINO's own nodes. Raises ArtifactError where they cannot be
    compiled.
    """
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    graphs = sorted(onnx_folder.glob("*.onnx"))
    passes: dict[str, ov.Model] = {}
    with ticking(f"engines, KV in {kv_type}", len(graphs), "graph") as bar:
        operations = Operations(out / OPERATIONS, kv_type) if operation else None
        attention = Attention(operations) if operations else None
        linears = Linears(operations) if operations and kv_type == "bf16" else None
        bar.set_postfix_str(f"attention: {'one operation' if operation else 'nodes of OpenVINO'}")
        for path in graphs:
            model = _with_kv_type(attention.read(path) if attention else read_inlined(path), kv_type)
            if kv_type == "bf16":
                if linears:  # while no table is there but the embedding: those of angles stay in f32
                    linears.replace(model)
                tabulate_angles(model, longest)
                if operations:
                    rotate_at_once(model, operations)
                    keep_narrow(model)
            if path.stem.startswith("prefill") and not attention:
                in_blocks(model, longest)
            if path.stem == "prefill_draft":
                _save(model, out, path.stem)
            else:
                passes[path.stem] = model
            bar.update()
        places = linears.save(out / WEIGHTS_FILE) if linears else {}
        if any(_bytes(model) > LARGE for model in passes.values()):
            passes = {PASSES: one_graph(passes)}
        for name, model in passes.items():
            _save(model, out, name)
    facts = {"kv_type": kv_type, "openvino": ov.get_version(), "weights": places}
    (out / "engine.json").write_text(json.dumps(facts) + "\n")


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


def read_inlined(path: Path) -> ov.Model:
    """OpenVINO refuses model-local functions and reads files only, so the inlined graph goes through one."""
    with tempfile.TemporaryDirectory() as folder:
        inlined = Path(folder) / path.name
        onnx.save(
            inliner.inline_local_functions(onnx.load(str(path))), str(inlined), save_as_external_data=True
        )
        return ov.Core().read_model(str(inlined))


def _with_kv_type(model: ov.Model, kv_type: str) -> ov.Model:
    """The same graph with its KV inputs and outputs in `kv_type`."""
    if kv_type == "f32":
        return model
    process = PrePostProcessor(model)
    for port in model.inputs:
        if port.any_name.startswith(("shared_", "past_")):
            process.input(port.any_name).tensor().set_element_type(ov.Type.bf16)
    for port in model.outputs:
        if port.any_name.startswith(("shared_", "fresh_")):
            process.output(port.any_name).tensor().set_element_type(ov.Type.bf16)
    return process.build()
