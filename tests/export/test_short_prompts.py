"""A model whose longest prompt is short is exported like any other: examples fit their axes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from export import decoder, ranker
from export.graph import Traced
from export.names import DRAFT, RESUME, RESUME_DRAFT
from genrec.draft.options import DraftConfig
from genrec.models.config import ModelConfig
from genrec.nn.draft_head import DraftHead
from genrec.nn.model import Generator
from genrec.nn.ranker import Ranker


def pairs(axes: Any, example: Any) -> Iterator[tuple[int, int]]:
    """Of all axes that may have any length: how long the example is, and the most."""
    if isinstance(example, torch.Tensor):
        for place, axis in (axes or {}).items():
            yield example.shape[place], axis.max
    elif axes is not None:
        for each, of in zip(axes, example, strict=True):
            yield from pairs(each, of)


@pytest.mark.parametrize(("sizes", "max_history"), [((9,), 1), ((3, 4), 2), ((3, 4, 5), 2)])
def test_examples_are_no_longer_than_prompts_may_be(
    sizes: tuple[int, ...], max_history: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are, torch ends the export with a long traceback."""
    traced: list[Traced] = []
    for module in (decoder, ranker):
        monkeypatch.setattr(module, "write", lambda graph, *_: traced.append(graph))
    generator = Generator(ModelConfig(sizes, max_history, hidden_size=8, head_dim=8, intermediate_size=8))
    for name in (*generator.config.graph_names, RESUME):
        decoder.export_graph(generator, name, tmp_path)
    for name in (DRAFT, RESUME_DRAFT):
        decoder.export_draft(generator, DraftHead(generator.config, DraftConfig()), name, tmp_path)
    for name in ranker.RANK_GRAPHS:
        ranker.export_rank_graph(Ranker(generator, shared=True), name, tmp_path)
    assert len(traced) == len(sizes) + 3 + len(ranker.RANK_GRAPHS)
    lengths = [each for graph in traced for each in pairs(graph.axes, graph.example)]
    assert lengths and all(length <= most for length, most in lengths)
