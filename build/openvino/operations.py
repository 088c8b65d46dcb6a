"""Operations of ours for OpenVINO's CPU device (build/plugin/openvino): compiled, loaded and put into graphs."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.plugin.compile import FOLDER, run
from genrec.engine.openvino import can_run
from genrec.errors import ArtifactError

SOURCES = sorted((FOLDER / "openvino").iterdir())
# GCC 12 takes what its own intrinsics leave undefined for a mistake.
MACHINES = {"f32": ["-march=x86-64-v3"], "bf16": ["-march=sapphirerapids", "-Wno-maybe-uninitialized"]}


def can_be_compiled(kv_type: str) -> bool:
    """Whether they are to be had here: for f32 with AVX2, for bf16 with AMX, and with a compiler."""
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
        library = Path(folder) / "library.so"
        run(["g++", str(FOLDER / "openvino" / "op.cpp"), *flags, *links, "-o", str(library)])
        return library.read_bytes()


class Operations:
    """The compiled library, a core that reads graphs with its operations, and a maker of their nodes."""

    def __init__(self, library: Path, kv_type: str) -> None:
        """Writes `library`. Raises ArtifactError."""
        library.write_bytes(compiled(kv_type))
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
