"""`genrec build`: ONNX to engines of a target, and the catalogue to its validity index."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino

from build.causal import QUERIES
from build.openvino import LARGE, build_openvino, kv_type_of_this_cpu
from build.operations import SOURCES, can_be_compiled
from build.validity import build_validity
from genrec.artifact import load_config
from genrec.errors import ArtifactError
from genrec.manifest import is_good, record, stage_key

GRAPHS = 3  # raised when the same ONNX becomes other engines, so that artifacts are built anew


def build_engines(artifact: Path, kv_type: str = "") -> bool:
    """OpenVINO engines of the artifact's ONNX; an empty `kv_type` follows the CPU. Returns whether work was done."""
    kv_type = kv_type or kv_type_of_this_cpu()
    operation = can_be_compiled(kv_type)
    settings = {
        "kv_type": kv_type,
        "openvino": openvino.get_version(),
        "one_graph_from": LARGE,
        "queries": QUERIES,
        "graphs": GRAPHS,
        "attention": "operation" if operation else "nodes",
    }
    key = stage_key(settings, [*SOURCES, *sorted((artifact / "onnx").iterdir())])
    if is_good(artifact, "openvino", key):
        return False
    out = artifact / "engines" / "openvino"
    longest = load_config(artifact).max_prompt
    try:
        build_openvino(artifact / "onnx", out, kv_type, longest, operation)
    except ArtifactError as error:
        if not operation:
            raise
        print(f"attention stays in OpenVINO's own nodes: {error}", file=sys.stderr)
        build_openvino(artifact / "onnx", out, kv_type, longest, operation=False)
        settings["attention"] = "nodes"
    record(artifact, "openvino", key, [f for f in out.iterdir() if f.is_file()], settings)
    return True


def build_artifact(artifact: Path, target: str = "openvino") -> list[str]:
    """Build what is not there yet; returns the stages that did work. Target `cuda` needs torch and nvcc.

    Plans of target `tensorrt` are built where they are served: `deploy.tensorrt.build_engines`.
    """
    engines = build_engines
    if target == "cuda":
        from build.cuda import build_cuda as engines  # imports torch
    stages = {"validity": build_validity, target: engines}
    return [name for name, build in stages.items() if build(artifact)]
