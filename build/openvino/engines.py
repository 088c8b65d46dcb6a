"""The artifact's ONNX to OpenVINO engines, unless they are there."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino

from build.openvino.causal import QUERIES
from build.openvino.graphs import LARGE, build_openvino, kv_type_of_this_cpu
from build.openvino.operations import SOURCES, can_be_compiled, libraries
from genrec.artifact import engines_folder, load_config
from genrec.errors import ArtifactError
from genrec.manifest import is_good, record, stage_key
from genrec.rank.options import OPTIONS, RankerConfig

GRAPHS = 5  # raised when the same ONNX becomes other engines, so that artifacts are built anew


def build_engines(artifact: Path, kv_type: str = "") -> bool:
    """OpenVINO engines of the artifact's ONNX; an empty `kv_type` follows the CPU. Returns whether work was done."""
    kv_type, longest = kv_type or kv_type_of_this_cpu(), _longest(artifact)
    operation = can_be_compiled(kv_type)
    settings = {
        "kv_type": kv_type,
        "openvino": openvino.get_version(),
        "one_graph_from": LARGE,
        "longest": longest,
        "queries": QUERIES,
        "graphs": GRAPHS,
        "attention": "operation" if operation else "nodes",
    }
    key = stage_key(settings, [*SOURCES, *sorted((artifact / "onnx").iterdir())])
    if is_good(artifact, "openvino", key):
        return False
    if operation and not _compiles(kv_type):
        operation, settings["attention"] = False, "nodes"
    out = engines_folder(artifact, "openvino")
    build_openvino(artifact / "onnx", out, kv_type, longest, operation)
    record(artifact, "openvino", key, [f for f in out.iterdir() if f.is_file()], settings)
    return True


def _longest(artifact: Path) -> int:
    """Tokens of the longest prompt, or of a ranking's longest history and one candidate behind it."""
    config, path = load_config(artifact), artifact / "model" / OPTIONS
    if not path.exists():
        return config.max_prompt
    options = RankerConfig.load(path)
    return max(config.max_prompt, options.longest_history(config) + options.item_tokens)


def _compiles(kv_type: str) -> bool:
    """Whether the compiler that is here can do it; where it cannot, engines are built without, and that is told."""
    try:
        libraries(kv_type)
    except ArtifactError as error:
        print(f"attention stays in OpenVINO's own nodes: {error}", file=sys.stderr)
        return False
    return True
