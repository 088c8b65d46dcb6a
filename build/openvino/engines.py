"""The artifact's ONNX to OpenVINO engines, unless they are there."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino

from build.openvino.causal import QUERIES
from build.openvino.graphs import LARGE, build_openvino
from build.openvino.operations import SOURCES, can_be_compiled, libraries
from genrec.artifact import configuration, engines_folder, load_config
from genrec.compiled import can_be_compiled as has_compiler
from genrec.engine.instructions import own_type
from genrec.errors import ArtifactError
from genrec.kv.layout import KV_TYPES
from genrec.manifest import OF, is_good, making, read, renewed, stage_key, unchanged
from genrec.progress import ticking
from genrec.rank.options import OPTIONS, RankerConfig
from genrec.words import command

OPERATION, NODES = "operation", "nodes"
GRAPHS = 8  # raised when the same ONNX becomes other engines, so that artifacts are built anew


def build_engines(artifact: Path, kv_type: str = "") -> bool:
    """OpenVINO engines of the artifact's ONNX, of one type or of all that can be built here. Whether work was done.

    A CPU that lacks the instructions of one type serves the other (`genrec.engine.instructions.engine_of`). Raises
    ArtifactError.
    """
    types, longest = _types(kv_type), _longest(artifact)
    if not (artifact / "onnx").is_dir():
        raise ArtifactError(artifact / "onnx", f"is missing; {command('export', artifact)} makes it")
    settings = {
        "types": types,
        "openvino": openvino.get_version(),
        "one_graph_from": LARGE,
        "longest": longest,
        "queries": QUERIES,
        "graphs": GRAPHS,
    }
    of = read(artifact).get("export", {"facts": {}})["facts"].get(OF, {})
    exported = sorted((artifact / "onnx").iterdir())
    key = stage_key(settings, [*SOURCES, *exported])
    with making(artifact, "openvino"):
        if is_good(artifact, "openvino", key):
            return False
        facts = {**settings, OF: of}
        folder = engines_folder(artifact, "openvino")
        if not has_compiler():
            told = "there is no g++, which compiles faster ones; with it, build again"
            print(f"attention stays in OpenVINO's own nodes: {told}", file=sys.stderr)
        with renewed(artifact, "openvino", key, folder, facts) as new, unchanged(exported):
            for each, attention in types.items():
                if attention == OPERATION and not _compiles(each):
                    types[each] = NODES
                build_openvino(artifact / "onnx", new / each, each, longest, types[each] == OPERATION)
        return True


def _types(kv_type: str) -> dict[str, str]:
    """Type -> how its graphs compute attention: `kv_type` alone, or the CPU's own and whatever can be compiled."""
    own = kv_type or own_type()
    types = [own] if kv_type else [own, *(each for each in KV_TYPES if each != own and can_be_compiled(each))]
    return {each: OPERATION if can_be_compiled(each) else NODES for each in types}


def _longest(artifact: Path) -> int:
    """Tokens of the longest prompt, or of a ranking's longest history between a candidate and what stands for it."""
    config, path = load_config(artifact, "openvino"), configuration(artifact, "openvino", OPTIONS)
    if not path.exists():
        return config.max_prompt
    options = RankerConfig.load(path)
    return max(config.max_prompt, options.longest_history(config) + 2 * options.item_tokens)


def _compiles(kv_type: str) -> bool:
    """Whether the compiler that is here can do it; where it cannot, engines are built without, and that is told."""
    try:
        with ticking(f"compiling attention, KV in {kv_type}"):
            libraries(kv_type)
    except ArtifactError as error:
        print(f"attention stays in OpenVINO's own nodes: {error}", file=sys.stderr)
        return False
    return True
