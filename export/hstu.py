"""The writer of HSTU rankers, of ratings and of the next item: one graph makes a user's KV, one scores candidates.

Their weights are inputs, and lie in a file beside them. `genrec.rank.hstu.HstuKind` has the names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call

from export.graph import Traced, write
from genrec.engine.interface import WEIGHTS
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_graphs import HstuRankGraph, HstuUserGraph, NextRankGraph, NextUserGraph
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import HstuConfig, NextConfig
from genrec.rank.hstu_weights import CODES_OF_ITEMS
from genrec.rank.options import MOST_CANDIDATES
from genrec.tensor_file import write_tensors

Ranker = HstuRanker | HstuNext
Graph = Callable[[Any], Traced]
OF_ITEM = "of_item.weight"


def export_hstu_graph(ranker: Ranker, name: str, folder: Path) -> Path:
    """Write one graph of `ranker`, of plain nodes, and beside the ranking's the weights; returns the ONNX file."""
    kind, weights = ranker.config.kind, weights_of(ranker)
    if name == kind.graphs[1]:
        # What else a delta must not change: graphs are of these numbers.
        about = {"format": "pt", "config": json.dumps(asdict(ranker.config))}
        write_tensors(folder / kind.exported, weights, about)
    graph = HSTU_GRAPHS[name](ranker)
    return write(_of_weights(graph, weights, kind.tables), {}, folder / f"{name}.onnx")


def weights_of(ranker: Ranker) -> dict[str, NDArray[Any]]:
    """All weights, and the rows of items' codes, by torch's names; of items and codes, row 0 is none."""
    arrays = {name: np.ascontiguousarray(each.numpy()) for name, each in ranker.state_dict().items()}
    if isinstance(ranker, HstuNext):
        # Torch needs no row of none; items of later catalogues, which have no row of their own, do.
        for name in (OF_ITEM, CODES_OF_ITEMS):
            arrays[name] = np.concatenate((np.zeros_like(arrays[name][:1]), arrays[name]))
    return arrays


class _OfWeights(nn.Module):
    """A graph that is given its weights too, so that a server may change them."""

    def __init__(self, graph: nn.Module, names: list[str]) -> None:
        super().__init__()
        self._graph, self._names = [graph], names  # in a list: its weights are no constants of the trace

    def forward(self, weights: list[Tensor], given: list[Any]) -> Any:
        """What the graph makes of `given` with these weights."""
        named = {f"ranker.{name}": each for name, each in zip(self._names, weights, strict=True)}
        return functional_call(self._graph[0], named, tuple(given))


def _of_weights(graph: Traced, arrays: dict[str, NDArray[Any]], tables: tuple[str, ...]) -> Traced:
    weights = {name: torch.from_numpy(each) for name, each in arrays.items() if name != CODES_OF_ITEMS}
    rows = [{0: Dim(f"rows{place}")} if name in tables else None for place, name in enumerate(weights)]
    return Traced(
        _OfWeights(graph.module, list(weights)), ([*weights.values()], list(graph.example)),
        (rows, list(graph.axes)), [*(f"{WEIGHTS}{name}" for name in weights), *graph.inputs], graph.outputs,
    )  # fmt: skip


def _names(config: HstuConfig, of: str) -> list[str]:
    return [f"{of}_{kind}_{layer}" for layer in range(config.layers) for kind in ("k", "v")]


def _entry(config: HstuConfig, tokens: int) -> list[torch.Tensor]:
    shape = (1, config.heads, tokens, config.hidden_size // config.heads)
    return [torch.randn(shape) for _ in range(2 * config.layers)]


def _tokens(config: HstuConfig, rows: int) -> torch.Tensor:
    return torch.from_numpy(config.read(np.zeros((rows, config.token_size), np.int32)))


def _user(graph: nn.Module, config: HstuConfig) -> Traced:
    new, past, names = Dim("Q", max=config.longest), Dim("P", max=config.longest), _names(config, "past")
    marks = [torch.zeros(shape, dtype=torch.int64) for shape in ((3, 5, 5), (3, 5, 7))]
    return Traced(
        graph, (_tokens(config, 5), *marks, _entry(config, 7)),
        ({0: new}, {1: new, 2: new}, {1: new, 2: past}, [{2: past}] * len(names)),
        ["tokens", "marks", "past_marks", *names], _names(config, "made"),
    )  # fmt: skip


def _rank(graph: nn.Module, config: HstuConfig) -> Traced:
    many, span, names = Dim("C", max=MOST_CANDIDATES), Dim("S", max=config.longest), _names(config, "user")
    candidates = torch.zeros(5, 1 + len(config.codebook_sizes), dtype=torch.int64)
    of_next = isinstance(config, NextConfig)
    newest = [_tokens(config, 1)] if of_next else []
    return Traced(
        graph, (*newest, candidates, torch.zeros(3, 7, dtype=torch.int64), _entry(config, 7)),
        (*(None for _ in newest), {0: many}, {1: span}, [{2: span}] * len(names)),
        [*(["newest"] if of_next else []), "candidates", "marks", *names], ["logits"],
    )  # fmt: skip


def _graphs(of: type[HstuConfig], user: type[nn.Module], rank: type[nn.Module]) -> dict[str, Graph]:
    """By the names of a kind."""
    names = of.kind.graphs
    return {
        names[0]: lambda ranker: _user(user(ranker), ranker.config),
        names[1]: lambda ranker: _rank(rank(ranker), ranker.config),
    }


HSTU_GRAPHS = {
    **_graphs(HstuConfig, HstuUserGraph, HstuRankGraph),
    **_graphs(NextConfig, NextUserGraph, NextRankGraph),
}
