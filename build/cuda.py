"""Target `cuda`: the attention kernel compiled, and what the engine has to know. Weights stay in `model/`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from build.plugin.compile import FOLDER, SOURCES, compile_for_gpu
from genrec.engine.cuda import LIBRARY
from genrec.manifest import is_good, record, stage_key


def build_cuda(artifact: Path, kv_type: str = "bf16", device: str = "cuda") -> bool:
    """Write `engines/cuda`; on `device` `cpu` torch does the kernel's work. Returns whether work was done."""
    settings = {"kv_type": kv_type, "device": device}
    key = stage_key(settings, [FOLDER / name for name in SOURCES])
    if is_good(artifact, "cuda", key):
        return False
    out = artifact / "engines" / "cuda"
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    if device == "cuda":
        compile_for_gpu(out / LIBRARY)
    (out / "engine.json").write_text(json.dumps(settings) + "\n")
    record(artifact, "cuda", key, out.iterdir(), settings)
    return True
