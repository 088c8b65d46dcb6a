"""TensorRT-RTX ahead-of-time build (not Hopper, not executed).

What a machine without a GPU can prove of the tensorrt target: our ONNX passes a TensorRT front end, strongly
typed, with its optimisation profiles, and each attention becomes one plugin layer. TensorRT for RTX refuses
compute capability 9.0 and its plans are not Triton's; `deploy/` builds those in the container.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from build.functions import load
from build.tensorrt.profiles import profile
from build.tensorrt.served_onnx import served
from build.tensorrt.typed_onnx import typed
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig
from genrec.progress import ticking

PYTHON = "GENREC_RTX_PYTHON"  # another interpreter that has the extra `rtx`
COMPUTE_CAPABILITY = "SM89"  # 9.0 is refused
WORKER = Path(__file__).with_name("rtx_worker.py")
FIND = "import tensorrt_rtx_libs as l; print(list(l.__path__)[0])"


def rtx_libraries() -> Path | None:
    """Folder of the extra's libraries, None when it is not installed."""
    found = subprocess.run([_python(), "-c", FIND], capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def _python() -> str:
    return os.environ.get(PYTHON, sys.executable)


def build_ahead_of_time(onnx_file: Path, config: ModelConfig, kind: str, plan: Path) -> dict[str, Any]:
    """Build one exported graph as `kind` (`f32`, `f16`, `bf16`); facts of the worker. Raises ArtifactError.

    Asserts exactly one plugin layer per attention node: TensorRT 10.15 and later fall back on the function body
    without a word.
    """
    libraries = rtx_libraries()
    if libraries is None:
        raise ArtifactError("tensorrt_rtx", f"not installed in {_python()}; it is the extra `rtx`")
    model = served(typed(load(onnx_file), kind), onnx_file.stem, config)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, str(Path(folder) / "graph.onnx"))
        # The parser opens libtensorrt_rtx.so and the wheel ships only .so.1.
        Path(folder, "libtensorrt_rtx.so").symlink_to(libraries / "libtensorrt_rtx.so.1")
        task = {
            "onnx": str(Path(folder) / "graph.onnx"),
            "plan": str(plan),
            "profile": profile(model, config),
            "compute_capability": COMPUTE_CAPABILITY,
        }
        path = os.pathsep.join([folder, str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])
        done = subprocess.run(
            [_python(), str(WORKER), json.dumps(task)],
            env={**os.environ, "LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise ArtifactError(onnx_file, f"TensorRT-RTX ahead-of-time build failed: {done.stderr[-2000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    wanted = sum(node.op_type == "XAttention" for node in model.graph.node)
    if facts["plugin_layers"] != wanted:
        raise ArtifactError(
            onnx_file, f"has {wanted} XAttention nodes, TensorRT made {facts['plugin_layers']} plugin layers"
        )
    return facts


def main() -> None:
    """Command line: every graph of an artifact, plans beside nothing that serves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path, help="folder with model/ and onnx/")
    parser.add_argument("--kv-type", default="f16", choices=("f32", "f16", "bf16"))
    arguments = parser.parse_args()
    config = ModelConfig.load(arguments.artifact / "model" / "config.json")
    with tempfile.TemporaryDirectory() as folder:
        for graph in sorted((arguments.artifact / "onnx").glob("*.onnx")):
            with ticking(graph.stem):
                facts = build_ahead_of_time(graph, config, arguments.kv_type, Path(folder) / "plan")
            print(
                f"TensorRT-RTX ahead-of-time build (not Hopper, not executed): {graph.stem} {json.dumps(facts)}"
            )


if __name__ == "__main__":
    main()
