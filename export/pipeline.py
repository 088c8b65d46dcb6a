"""`genrec export`: the trained generator of an artifact to `onnx/`."""

from __future__ import annotations

from pathlib import Path

from export.onnx_files import OPSET, export_generator
from genrec.manifest import is_good, record, stage_key


def export_artifact(artifact: Path) -> bool:
    """Export unless the graphs of these very weights are there; returns whether work was done."""
    model = artifact / "model"
    weights = [model / "config.json", *model.glob("draft.json"), *sorted(model.glob("*.safetensors"))]
    key = stage_key({"opset": OPSET}, weights)
    if is_good(artifact, "export", key):
        return False
    export_generator(model, artifact / "onnx")
    record(artifact, "export", key, (artifact / "onnx").iterdir(), {"opset": OPSET})
    return True
