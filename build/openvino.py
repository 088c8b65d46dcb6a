"""ONNX to OpenVINO: function bodies inlined, KV in bf16 where the CPU computes in it."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import onnx
import openvino as ov
from onnx import inliner
from openvino.preprocess import PrePostProcessor

from genrec.progress import ticking


def kv_type_of_this_cpu() -> str:
    """`bf16` on CPUs with AMX or AVX512-BF16, else `f32`."""
    return "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def build_openvino(onnx_folder: Path, out: Path, kv_type: str) -> None:
    """Convert every graph of `onnx_folder` into `out`; `kv_type` is `f32` or `bf16` (KV tensors and arithmetic)."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    graphs = sorted(onnx_folder.glob("*.onnx"))
    with ticking(f"engines, KV in {kv_type}", len(graphs), "graph") as bar:
        for path in graphs:
            model = _with_kv_type(read_inlined(path), kv_type)
            ov.save_model(model, str(out / f"{path.stem}.xml"), compress_to_fp16=False)
            bar.update()
    (out / "engine.json").write_text(json.dumps({"kv_type": kv_type, "openvino": ov.get_version()}) + "\n")


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
