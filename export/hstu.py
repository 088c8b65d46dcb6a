"""The writer of HSTU rankers: `hstu_user.onnx` makes a user's KV, `hstu_rank.onnx` scores candidates over it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import Dim

from export.graph import Traced, write
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_graphs import HstuRankGraph, HstuUserGraph
from genrec.rank.hstu import RANK_GRAPH, USER_GRAPH, HstuConfig
from genrec.rank.options import MOST_CANDIDATES


def export_hstu_graph(ranker: HstuRanker, name: str, folder: Path) -> Path:
    """Write one graph of `ranker`, of plain nodes; returns the ONNX file."""
    return write(HSTU_GRAPHS[name](ranker), {}, folder / f"{name}.onnx")


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
