"""The writer of decoders (Qwen2, Qwen3, Llama): `prefill.onnx`, `resume.onnx` and a `decode_<l>.onnx` per later level.

They are dynamic over B, S and W. With a draft head also `prefill_draft.onnx`, `resume_draft.onnx`, and the head itself
as plain arrays (`genrec.draft.head` runs them). Levels have graphs of their own because their number is known: each
holds its own block of the head and reads exactly the unshared tokens it has.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import Dim

from export.graph import Traced, tokens_axis, write
from export.hstu import HSTU_GRAPHS, export_hstu_graph
from export.names import DECODE_ALL, DRAFT, RESUME, RESUME_DRAFT
from export.ranker import RANK_GRAPHS, export_rank_graph
from genrec.draft.options import FILE_NAME as DRAFT_HEAD
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import load_draft, save_serving
from genrec.nn.draft_head import DraftHead, PrefillDraftGraph, ResumeDraftGraph
from genrec.nn.hstu_checkpoint import load_hstu, load_hstu_next
from genrec.nn.model import Generator
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.nn.xattention import (
    DecodeAllGraph,
    DecodeGraph,
    PrefillGraph,
    ResumeGraph,
    new_unshared_names,
    shared_names,
    unshared_names,
)
from genrec.rank.hstu import NextConfig


def functions(config: ModelConfig, name: str) -> dict[str, int]:
    """How often the graph `name` calls each function of `genrec.nn.functions`.

    A prefill norms the input of its last layer twice, for the keys of all positions and for the queries of those that
    are read, and has angles for both; that layer's attention is not causal in the order of rows.
    """
    layers, prompt = config.num_hidden_layers, name.startswith("prefill")
    heads = {DRAFT: 0, RESUME_DRAFT: 0, DECODE_ALL: config.levels - 1}.get(name, 1)
    counts = {
        "Rows": 1,
        "Angles": 2 if prompt else 1,
        "RMSNorm": 2 * layers + (2 if prompt else max(heads, 1)),
        "Linear": 3 * layers + heads,
        "NormRotate" if config.model_type == "qwen3" else "Rotate": 2 * layers,
        "AddLinear": 2 * layers,
        "SwiGLU": layers,
        "CausalAttention": layers - 1 if prompt else 0,
        "PastAttention": layers if name in (RESUME, RESUME_DRAFT) else 0,
        "XAttention": layers * heads if name.startswith("decode") else 0,
    }
    return {function: count for function, count in counts.items() if count}


def export_graph(generator: Generator, name: str, folder: Path) -> Path:
    """Write one graph of `generator`; returns the ONNX file."""
    level = name.removeprefix("decode_")
    graph = WHOLE[name](generator) if name in WHOLE else _decode(generator, int(level))
    return write(graph, functions(generator.config, name), folder / f"{name}.onnx")


def _prefill(generator: Generator) -> Traced:
    config = generator.config
    batch, span = Dim("B", max=4096), tokens_axis("S", config.max_prompt)
    return Traced(
        PrefillGraph(generator), (torch.zeros(2, 7, dtype=torch.int64), torch.tensor([5, 6])),
        ({0: batch, 1: span}, {0: batch}), ["tokens", "prompt_length"], ["logits", *shared_names(config)],
    )  # fmt: skip


def _resume(generator: Generator) -> Traced:
    return _behind_past(ResumeGraph(generator), generator.config, generator.config.max_prompt, "logits")


def _behind_past(graph: ResumeGraph | ResumeDraftGraph, config: ModelConfig, most: int, gives: str) -> Traced:
    """A graph that goes on behind a past with at most `most` tokens."""
    new, past = tokens_axis("Q", most), tokens_axis("P", config.max_prompt)
    names = shared_names(config)
    shared = [torch.randn(1, config.num_key_value_heads, 7, config.head_dim) for _ in names]
    return Traced(
        graph, (torch.zeros(1, 5, dtype=torch.int64), torch.tensor([6]), shared),
        ({1: new}, {}, [{2: past}] * len(names)),
        ["tokens", "past_length", *names], [gives, *(f"new_{name}" for name in names)],
    )  # fmt: skip


def _decode_all(generator: Generator) -> Traced:
    config = generator.config
    span, names = tokens_axis("S", config.max_prompt), shared_names(config)
    levels = range(1, config.levels)
    beams = [Dim(f"W{level}", max=4096) for level in levels]
    shared = [torch.randn(1, config.num_key_value_heads, 7, config.head_dim) for _ in names]
    codes = [torch.zeros(1, 2 + level, dtype=torch.int64) for level in levels]
    parents = [torch.zeros(2 + level, dtype=torch.int64) for level in levels[1:]]
    return Traced(
        DecodeAllGraph(generator), (torch.tensor([5]), codes, parents, shared),
        ({}, [{1: each} for each in beams], [{0: each} for each in beams[1:]], [{2: span}] * len(names)),
        ["prompt_length", *(f"codes_{n}" for n in levels), *(f"parents_{n}" for n in levels[1:]), *names],
        [f"logits_{level + 1}" for level in levels],
    )  # fmt: skip


WHOLE = {"prefill": _prefill, RESUME: _resume, DECODE_ALL: _decode_all}


def _decode(generator: Generator, level: int) -> Traced:
    config = generator.config
    batch, span, beams = Dim("B", max=4096), tokens_axis("S", config.max_prompt), Dim("W", max=4096)
    names, before = shared_names(config), unshared_names(config, level)
    shared = [torch.randn(2, config.num_key_value_heads, 7, config.head_dim) for _ in names]
    unshared = [torch.randn(2, 3, config.num_key_value_heads, config.head_dim) for _ in before]
    return Traced(
        DecodeGraph(generator, level),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([5, 6]), shared, unshared),
        ({0: batch, 1: beams}, {0: batch}, [{0: batch, 2: span}] * len(names), [{0: batch, 1: beams}] * len(before)),
        ["codes", "prompt_length", *names, *before],
        ["logits"] if level == config.levels else ["logits", *new_unshared_names(config)],
    )  # fmt: skip


def export_draft(generator: Generator, head: DraftHead, name: str, folder: Path) -> Path:
    """Write `prefill_draft.onnx` and the head's arrays, or `resume_draft.onnx`; returns the ONNX file.

    S and Q count the placeholders too.
    """
    config = generator.config
    longest = config.max_prompt + config.levels
    if name == RESUME_DRAFT:
        graph = _behind_past(ResumeDraftGraph(generator, head), config, longest, "states")
        return write(graph, functions(config, name), folder / f"{name}.onnx")
    batch, span = Dim("B", max=4096), tokens_axis("S", longest)
    graph = Traced(
        PrefillDraftGraph(generator, head), (torch.zeros(2, 11, dtype=torch.int64), torch.tensor([5, 6])),
        ({0: batch, 1: span}, {0: batch}), ["tokens", "prompt_length"], ["states"],
    )  # fmt: skip
    save_serving(generator, head, folder / DRAFT_HEAD)
    return write(graph, functions(config, name), folder / f"{name}.onnx")


def export_from(model_folder: Path, name: str, folder: Path) -> Path:
    """Write the graph `name` of the checkpoint in `model_folder`; returns the ONNX file."""
    if name in HSTU_GRAPHS:
        load = load_hstu_next if name in NextConfig.kind.graphs else load_hstu
        return export_hstu_graph(load(model_folder), name, folder)
    if name in RANK_GRAPHS:
        return export_rank_graph(load_ranker(model_folder), name, folder)
    generator = load_generator(model_folder)
    if name in (DRAFT, RESUME_DRAFT):
        return export_draft(generator, load_draft(model_folder), name, folder)
    return export_graph(generator, name, folder)
