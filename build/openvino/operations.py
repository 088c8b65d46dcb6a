"""Operations of ours for OpenVINO's CPU device (build/plugin/openvino): compiled, loaded and put into graphs."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.plugin.compile import FOLDER
from genrec.compiled import compiled
from genrec.engine.instructions import runs_here, sets_of
from genrec.errors import ArtifactError

SOURCES = sorted((FOLDER / "openvino").iterdir())
# GCC 12 takes what its own intrinsics leave undefined for a mistake.
V4 = ["-march=x86-64-v4", "-Wno-maybe-uninitialized"]
MACHINES = {
    "avx2_f32": ["-march=x86-64-v3"],
    "avx512_f32": V4,
    "avx512_rounded_bf16": V4,
    "avx512_bf16": [*V4, "-mavx512bf16", "-mavx512vbmi"],
    "amx_bf16": [*V4, "-mavx512bf16", "-mavx512vbmi", "-mamx-tile", "-mamx-bf16"],
}

# Models may outlive the ov.Core that loaded their operations, and unloads them. A process may load several libraries,
# whose functions have the same names.
FLAGS = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-z,nodelete", "-fno-gnu-unique"]


def can_be_compiled(kv_type: str) -> bool:
    """Whether there is a compiler, and this CPU has an instruction set for values of `kv_type`."""
    return any(map(runs_here, sets_of(kv_type))) and shutil.which("g++") is not None


def library(name: str) -> bytes:
    """The library for an instruction set and the OpenVINO that is installed, whose wheel has what is needed.

    Raises ArtifactError.
    """
    root = Path(ov.__file__).parent
    flags = [f'-DSET="set_{name}.hpp"', *MACHINES[name], *FLAGS]
    flags += ["-isystem", str(root / "include"), f"-L{root / 'libs'}", f'-DRELEASE="{ov.__version__}"']
    links = [f"-l:{next((root / 'libs').glob(f'{each}.so.*')).name}" for each in ("libopenvino", "libtbb")]
    source = str(FOLDER / "openvino" / "op.cpp")
    sources = [*SOURCES, *sorted(FOLDER.glob("*.hpp"))]
    return compiled(f"operations_{name}", sources, [source, *flags, *links]).read_bytes()


@cache
def libraries(kv_type: str) -> dict[str, bytes]:
    """File -> library, for every instruction set for values of `kv_type`, whatever this CPU has.

    What the compiler cannot do is told and left out. Raises ArtifactError when nothing is left that runs here.
    """
    done: dict[str, bytes] = {}
    refused: list[ArtifactError] = []
    with ThreadPoolExecutor() as threads:  # each waits for a compiler
        jobs = {each.library: threads.submit(library, each.name) for each in sets_of(kv_type)}
    for file, job in jobs.items():
        try:
            done[file] = job.result()
        except ArtifactError as error:
            refused.append(error)
    if not any(each.library in done and runs_here(each) for each in sets_of(kv_type)):
        raise refused[0]
    for error in refused:
        print(f"an instruction set is left out: {error}", file=sys.stderr)
    return done


class Operations:
    """A core that reads graphs with the operations of a library, and a maker of their nodes."""

    def __init__(self, library: Path, kv_type: str) -> None:
        """Raises ArtifactError."""
        self.core, self.kv_type, self._nodes = ov.Core(), kv_type, NodeFactory()
        try:
            self.core.add_extension(str(library))
        except RuntimeError as error:
            raise ArtifactError(library, f"OpenVINO cannot load it: {error}") from error
        self._nodes.add_extension(str(library))

    def create(self, name: str, tensors: list[ov.Output], *others: ov.Output, **attributes: Any) -> ov.Node:
        """A node on `tensors` in its own type and `others` as they are; what it gives is in f32 again.

        Outside the operations a graph is of f32, whatever it is computed in; OpenVINO drops the conversions.
        """
        kind = getattr(ov.Type, self.kv_type)
        values = [
            each if each.get_element_type() == kind else op.convert(each, self.kv_type).output(0)
            for each in tensors
        ]
        node = self._nodes.create(name, [*values, *others], attributes)
        return node if node.get_output_element_type(0) == ov.Type.f32 else op.convert(node, "f32")
