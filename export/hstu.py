"""The writer of HSTU rankers: `hstu_user.onnx` makes a user's KV, `hstu_rank.onnx` scores candidates over it.

Their weights are inputs, and lie in `hstu_weights.safetensors`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call

from export.graph import Traced, write
from genrec.engine.interface import WEIGHTS
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_graphs import HstuRankGraph, HstuUserGraph
from genrec.rank.hstu import RANK_GRAPH, USER_GRAPH, HstuConfig
from genrec.rank.hstu_weights import FILE, TABLES
from genrec.rank.options import MOST_CANDIDATES


def export_hstu_graph(ranker: HstuRanker, name: str, folder: Path) -> Path:
    """Write one graph of `ranker`, of plain nodes, and beside the ranking's the weights; returns the ONNX file."""
    if name == RANK_GRAPH:
        # What else a delta must not change: graphs are of these numbers.
        about = {"format": "pt", "config": json.dumps(asdict(ranker.config))}
        save_file(weights_of(ranker), folder / FILE, metadata=about)
        (folder / FILE).chmod(0o644)  # as `genrec.nn.checkpoint` does
    return write(_of_weights(HSTU_GRAPHS[name](ranker), ranker), {}, folder / f"{name}.onnx")


def weights_of(ranker: HstuRanker) -> dict[str, NDArray[Any]]:
    """All weights, and the rows of items' codes, by torch's names."""
    return {name: np.ascontiguousarray(each.numpy()) for name, each in ranker.state_dict().items()}


class _OfWeights(nn.Module):
    """A graph that is given its weights too, so that a server may change them."""

    def __init__(self, graph: nn.Module, names: list[str]) -> None:
        super().__init__()
        self._graph, self._names = [graph], names  # in a list: its weights are no constants of the trace

    def forward(self, weights: list[Tensor], given: list[Any]) -> Any:
        """What the graph makes of `given` with these weights."""
        named = {f"ranker.{name}": each for name, each in zip(self._names, weights, strict=True)}
        return functional_call(self._graph[0], named, tuple(given))


def _of_weights(graph: Traced, ranker: HstuRanker) -> Traced:
    weights = {name: each.detach() for name, each in ranker.named_parameters()}
    rows = [{0: Dim(f"rows{place}")} if name in TABLES else None for place, name in enumerate(weights)]
    return Traced(
        _OfWeights(graph.module, list(weights)), ([*weights.values()], list(graph.example)),
        (rows, list(graph.axes)), [*(f"{WEIGHTS}{name}" for name in weights), *graph.inputs], graph.outputs,
    )  # fmt: skip


def _names(config: HstuConfig, of: str) -> list[str]:
    return [f"{of}_{kind}_{layer}" for layer in range(config.layers) for kind in ("k", "v")]


def _entry(config: HstuConfig, tokens: int) -> list[torch.Tensor]:
    shape = (1, config.heads, tokens, config.hidden_size // config.heads)
    return [torch.randn(shape) for _ in range(2 * config.layers)]


def _user(ranker: HstuRanker) -> Traced:
    config = ranker.config
    new, past, names = Dim("Q", max=config.longest), Dim("P", max=config.longest), _names(config, "past")
    columns = 3 + len(config.codebook_sizes)
    given = [torch.zeros(shape, dtype=torch.int64) for shape in ((5, columns), (3, 5, 5), (3, 5, 7))]
    return Traced(
        HstuUserGraph(ranker), (*given, _entry(config, 7)),
        ({0: new}, {1: new, 2: new}, {1: new, 2: past}, [{2: past}] * len(names)),
        ["tokens", "marks", "past_marks", *names], _names(config, "made"),
    )  # fmt: skip


def _rank(ranker: HstuRanker) -> Traced:
    config = ranker.config
    many, span, names = Dim("C", max=MOST_CANDIDATES), Dim("S", max=config.longest), _names(config, "user")
    candidates = torch.zeros(5, 1 + len(config.codebook_sizes), dtype=torch.int64)
    return Traced(
        HstuRankGraph(ranker), (candidates, torch.zeros(3, 7, dtype=torch.int64), _entry(config, 7)),
        ({0: many}, {1: span}, [{2: span}] * len(names)), ["candidates", "marks", *names], ["logits"],
    )  # fmt: skip


HSTU_GRAPHS = {USER_GRAPH: _user, RANK_GRAPH: _rank}
