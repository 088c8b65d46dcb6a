"""`genrec export`: the trained model of an artifact to `onnx/`, by the writer of its family.

torch is imported once, by the process that those which trace are forked from. A writer (`genrec.models.registry`) has
`export_from(model folder, name of a graph, folder)`.
"""

from __future__ import annotations

import logging
import shutil
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import active_children, get_context
from pathlib import Path

from tqdm import tqdm

import genrec.nn
from export.names import DRAFT, GRAPHS, OPSET, RESUME_DRAFT, more_graphs, rank_graphs
from genrec.catalogue.meaning import check_meaning
from genrec.cores import usable_cores
from genrec.files import made_aside
from genrec.manifest import OF, is_good, making, record, recorded, stage_key, unchanged
from genrec.models.config import ModelConfig
from genrec.models.registry import CONFIG, config_of, family_of
from genrec.process import end_with_command, start_forkserver
from genrec.progress import ticking
from genrec.rank.deltas import FOLDER as DELTAS
from genrec.rank.hstu import FEATURES, HstuConfig, NextConfig
from genrec.rank.hstu import WEIGHTS as HSTU_WEIGHTS
from genrec.rank.options import OPTIONS, RankerConfig

HSTU = HstuConfig, NextConfig
START = get_context("forkserver")
# Of what a process imports to trace, all that takes long; the last two it imports as it goes along.
IMPORTED = "torch", "torch._dynamo", "torch._functorch.aot_autograd", "onnxscript.function_libs.torch_lib.ops"
# What graphs are written by: those of another release of ours are written anew.
SOURCES = [
    path for of in (__file__, genrec.nn.__file__) for path in sorted(Path(str(of)).parent.glob("*.py"))
]


def export_artifact(artifact: Path) -> bool:
    """Export unless the graphs of these very weights are there; returns whether work was done.

    Raises ArtifactError, of a model of another catalogue too: its graphs would be built, and answer other items.
    """
    model = artifact / "model"
    options = [
        path
        for name in ("draft.json", OPTIONS, FEATURES, *(of.kind.config for of in HSTU))
        if (path := model / name).is_file()
    ]
    weights = [model / CONFIG, *options, *sorted(model.glob("*.safetensors"))]
    # Of one HSTU ranker deltas follow what it learns, but not another shape.
    names = [str(path.relative_to(artifact)) for path in weights if path.name != HSTU_WEIGHTS]
    of = {name: recorded(artifact, name) for name in names}
    key = stage_key({"opset": OPSET, "graphs": GRAPHS}, [*SOURCES, *weights])
    with making(artifact, "export"):
        check_meaning(artifact)
        if is_good(artifact, "export", key):
            return False
        export_generator(model, artifact / "onnx")
        shutil.rmtree(artifact / DELTAS, ignore_errors=True)  # what they changed has gone
        record(artifact, "export", key, (artifact / "onnx").iterdir(), {"opset": OPSET, OF: of})
        return True


def export_generator(model_folder: Path, folder: Path) -> None:
    """Export every graph of the checkpoint in `model_folder`, a process each: tracing keeps one core busy.

    What `folder` held stays where something fails. Raises ArtifactError where another process changes the checkpoint
    meanwhile: graphs would be of two models.
    """
    files = [path for path in model_folder.iterdir() if path.suffix in (".json", ".safetensors")]
    writer = family_of(model_folder).writer
    config = config_of(model_folder)
    # Heads first: where one is of another generator, this is told before all else is written.
    names = [DRAFT, RESUME_DRAFT] if (model_folder / "draft.json").is_file() else []
    names += (
        rank_graphs(RankerConfig.load(model_folder / OPTIONS)) if (model_folder / OPTIONS).is_file() else []
    )
    names += [*config.graph_names, *(more_graphs(config) if isinstance(config, ModelConfig) else [])]
    names += [graph for of in HSTU if (model_folder / of.kind.config).is_file() for graph in of.kind.graphs]
    with made_aside(folder) as partial, unchanged(files):
        _export_all(writer, model_folder, names, partial)
        # As these weights are served, whatever is trained anew meanwhile
        for name in (CONFIG, OPTIONS, FEATURES):
            if (model_folder / name).is_file():
                shutil.copy(model_folder / name, partial)


def _export_all(writer: str, model_folder: Path, names: Sequence[str], folder: Path) -> None:
    others, processes = set(active_children()), min(len(names), usable_cores())
    start_forkserver(IMPORTED)
    # Until it has imported them: whom it forks after we were ended would miss semaphores, which went with us.
    first = START.Process(target=str)
    first.start()
    first.join()
    with (
        ProcessPoolExecutor(processes, START, _belong) as pool,
        ticking("export to ONNX", len(names), "graph") as bar,
    ):
        jobs = [pool.submit(_export, writer, model_folder, name, folder) for name in names]
        try:
            for job in as_completed(jobs):
                job.result()
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _belong() -> None:
    """The one that started us ends us, by its own end if it is killed."""
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which our end would leave behind
    end_with_command()


def _export(writer: str, model_folder: Path, name: str, folder: Path) -> None:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        import_module(writer).export_from(model_folder, name, folder)
