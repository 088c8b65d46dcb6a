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

from build.tensorrt.graphs import plan_graph, plan_names, plugin_layers
from build.tensorrt.profiles import profile
from build.tensorrt.ranker import item_tokens
from genrec.artifact import load_config
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


def build_ahead_of_time(
    artifact: Path, name: str, config: ModelConfig, kind: str, plan: Path
) -> dict[str, Any]:
    """Build the plan of a name as `kind` (`f32`, `f16`, `bf16`); facts of the worker. Raises ArtifactError.

    Asserts exactly one plugin layer per attention node: TensorRT 10.15 and later fall back on the function body
    without a word.
    """
    libraries = rtx_libraries()
    if libraries is None:
        raise ArtifactError("tensorrt_rtx", f"not installed in {_python()}; it is the extra `rtx`")
    model = plan_graph(artifact, name, kind, config)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, str(Path(folder) / "graph.onnx"))
        # The parser opens libtensorrt_rtx.so and the wheel ships only .so.1.
        Path(folder, "libtensorrt_rtx.so").symlink_to(libraries / "libtensorrt_rtx.so.1")
        task = {
            "onnx": str(Path(folder) / "graph.onnx"),
            "plan": str(plan),
            "profile": profile(model, config, item_tokens=item_tokens(artifact)),
            "compute_capability": COMPUTE_CAPABILITY,
        }
        path = os.pathsep.join([folder, str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])
        done = subprocess.run(
            [_python(), str(WORKER), json.dumps(task)],
            env={**os.environ, "LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise ArtifactError(name, f"TensorRT-RTX ahead-of-time build failed: {done.stderr[-2000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    wanted = plugin_layers(model)
    if facts["plugin_layers"] != wanted:
        raise ArtifactError(
            name, f"has {wanted} attention nodes, TensorRT made {facts['plugin_layers']} plugin layers"
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
    config = load_config(arguments.artifact, "tensorrt")
    with tempfile.TemporaryDirectory() as folder:
        for name in plan_names(arguments.artifact, config):
            with ticking(name):
                facts = build_ahead_of_time(
                    arguments.artifact, name, config, arguments.kv_type, Path(folder) / "plan"
                )
            print(f"TensorRT-RTX ahead-of-time build (not Hopper, not executed): {name} {json.dumps(facts)}")


if __name__ == "__main__":
    main()
