"""`genrec export`: the trained model of an artifact to `onnx/`, by the writer of its family.

torch is imported by the processes that trace, not here: their seconds of import would come twice. A writer
(`genrec.models.registry`) has `export_from(model folder, name of a graph, folder)`.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import genrec.nn
from export.names import DRAFT, GRAPHS, OPSET, RESUME, RESUME_DRAFT, rank_graphs
from genrec.manifest import is_good, record, stage_key
from genrec.models.config import ModelConfig
from genrec.models.registry import config_of, family_of
from genrec.progress import ticking
from genrec.rank.deltas import FOLDER as DELTAS
from genrec.rank.hstu import HstuConfig, NextConfig
from genrec.rank.options import OPTIONS, RankerConfig

HSTU = HstuConfig, NextConfig
# What graphs are written by: those of another release of ours are written anew.
SOURCES = [
    path for of in (__file__, genrec.nn.__file__) for path in sorted(Path(str(of)).parent.glob("*.py"))
]


def export_artifact(artifact: Path) -> bool:
    """Export unless the graphs of these very weights are there; returns whether work was done."""
    model = artifact / "model"
    options = [
        path
        for name in ("draft.json", OPTIONS, *(of.kind.config for of in HSTU))
        if (path := model / name).is_file()
    ]
    weights = [model / "config.json", *options, *sorted(model.glob("*.safetensors"))]
    key = stage_key({"opset": OPSET, "graphs": GRAPHS}, [*SOURCES, *weights])
    if is_good(artifact, "export", key):
        return False
    export_generator(model, artifact / "onnx")
    shutil.rmtree(artifact / DELTAS, ignore_errors=True)  # what they changed has gone
    record(artifact, "export", key, (artifact / "onnx").iterdir(), {"opset": OPSET})
    return True


def export_generator(model_folder: Path, folder: Path) -> None:
    """Export every graph of the checkpoint in `model_folder`, a process each: tracing keeps one core busy."""
    writer = family_of(model_folder).writer
    config = config_of(model_folder)
    names = [*config.graph_names, *([RESUME] if isinstance(config, ModelConfig) else [])]
    names += [DRAFT, RESUME_DRAFT] if (model_folder / "draft.json").is_file() else []
    names += (
        rank_graphs(RankerConfig.load(model_folder / OPTIONS)) if (model_folder / OPTIONS).is_file() else []
    )
    names += [graph for of in HSTU if (model_folder / of.kind.config).is_file() for graph in of.kind.graphs]
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with (
        ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), get_context("spawn")) as pool,
        ticking("export to ONNX", len(names), "graph") as bar,
    ):
        for job in as_completed([pool.submit(_export, writer, model_folder, name, folder) for name in names]):
            job.result()
            bar.update()


def _export(writer: str, model_folder: Path, name: str, folder: Path) -> None:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        import_module(writer).export_from(model_folder, name, folder)
