"""What an artifact's plans are built from: the one list of their names, and the graph of each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onnx import ModelProto
from safetensors.numpy import load_file

from build.functions import load
from build.tensorrt.rank_onnx import NODE, score_candidates
from build.tensorrt.ranker import RANK, plan_ranker
from build.tensorrt.served_onnx import served
from build.tensorrt.typed_onnx import typed
from export.names import DRAFT, RANK_ORDERS, RANK_PREFILL
from genrec.models.config import ModelConfig
from genrec.rank.head import FILE_NAME, TABLE
from genrec.rank.options import RankerConfig

BY_PLUGIN: Collection[str] = ("XAttention", NODE)  # nodes of which each must become a plugin layer


def plan_names(artifact: Path, config: ModelConfig) -> list[str]:
    """What `ensembles.tensorrt` serves by plans: prefill, every decode; the draft's prefill and the ranking, if any."""
    drafts = [DRAFT] if (artifact / "onnx" / f"{DRAFT}.onnx").is_file() else []
    return [*config.graph_names, *drafts, *([RANK] if plan_ranker(artifact) else [])]


def plan_graph(artifact: Path, name: str, kind: str, config: ModelConfig) -> ModelProto:
    """One of them, typed (`f32`, `f16`, `bf16`), with the ensemble's inputs. Raises ArtifactError."""
    folder = artifact / "onnx"
    if name != RANK:
        return served(typed(load(folder / f"{name}.onnx"), kind), name, config)
    items, split = (
        typed(load(folder / f"{each}.onnx"), kind) for each in (RANK_PREFILL, RANK_ORDERS["split"])
    )
    options = RankerConfig.of(artifact, "tensorrt")
    return score_candidates(items, split, load_file(folder / FILE_NAME)[TABLE], config, options)


def plugin_layers(model: ModelProto) -> int:
    """How many nodes of a graph a plugin computes."""
    return sum(node.op_type in BY_PLUGIN for node in model.graph.node)
