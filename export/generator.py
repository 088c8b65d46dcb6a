"""`genrec export`: the trained generator of an artifact to `onnx/`.

torch is imported by the processes that trace, not here: their seconds of import would come twice.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from genrec.manifest import is_good, record, stage_key
from genrec.models.config import ModelConfig
from genrec.progress import ticking

OPSET = 20
DOMAIN = "genrec"  # of the node that is ours
GRAPHS = 2  # raised when the graphs of the same weights become others, so that artifacts are exported anew
DRAFT = "prefill_draft"


def export_artifact(artifact: Path) -> bool:
    """Export unless the graphs of these very weights are there; returns whether work was done."""
    model = artifact / "model"
    weights = [model / "config.json", *model.glob("draft.json"), *sorted(model.glob("*.safetensors"))]
    key = stage_key({"opset": OPSET, "graphs": GRAPHS}, weights)
    if is_good(artifact, "export", key):
        return False
    export_generator(model, artifact / "onnx")
    record(artifact, "export", key, (artifact / "onnx").iterdir(), {"opset": OPSET})
    return True


def export_generator(model_folder: Path, folder: Path) -> None:
    """Export every graph of the checkpoint in `model_folder`, a process each: tracing keeps one core busy."""
    names = graph_names(ModelConfig.load(model_folder / "config.json"))
    names += [DRAFT] if (model_folder / "draft.json").is_file() else []
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with (
        ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), get_context("spawn")) as pool,
        ticking("export to ONNX", len(names), "graph") as bar,
    ):
        for job in as_completed([pool.submit(_export, model_folder, name, folder) for name in names]):
            job.result()
            bar.update()


def graph_names(config: ModelConfig) -> list[str]:
    """The graphs of a generator: prefill, then a decode for every level after the first."""
    return ["prefill", *(f"decode_{level}" for level in range(2, config.levels + 1))]


def _export(model_folder: Path, name: str, folder: Path) -> None:
    from export.onnx_files import export_from

    export_from(model_folder, name, folder)
