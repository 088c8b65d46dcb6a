"""Target `cuda`: the attention kernel compiled, and what the engine has to know. Weights stay in `model/`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from build.plugin.compile import FOLDER, SOURCES, compile_for_gpu
from genrec.artifact import engines_folder
from genrec.engine.cuda import LIBRARY
from genrec.manifest import is_good, making, renewed, stage_key
from genrec.progress import ticking


def build_engines(artifact: Path, kv_type: str = "bf16", device: str = "cuda") -> bool:
    """Write `engines/cuda`; on `device` `cpu` torch does the kernel's work. Returns whether work was done."""
    settings = {"kv_type": kv_type, "device": device}
    key = stage_key(settings, [FOLDER / name for name in SOURCES])
    with making(artifact, "cuda"):
        if is_good(artifact, "cuda", key):
            return False
        with renewed(artifact, "cuda", key, engines_folder(artifact, "cuda"), settings) as new:
            if device == "cuda":
                with ticking("compiling the kernel"):
                    compile_for_gpu(new / LIBRARY)
            (new / "engine.json").write_text(json.dumps(settings) + "\n")
        return True


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path, help="folder whose model/ is there")
    parser.add_argument("--kv-type", default="bf16", choices=("f32", "bf16"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: without the kernel")
    arguments = parser.parse_args()
    done = build_engines(arguments.artifact, arguments.kv_type, arguments.device)
    print(f"{arguments.artifact / 'engines' / 'cuda'}: {'built' if done else 'as it was'}")


if __name__ == "__main__":
    main()
