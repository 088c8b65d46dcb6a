"""The optimisation profile of every graph, from one table: smallest, usual and largest of each dynamic axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genrec.models.config import ModelConfig
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import MAX_BEAM_WIDTH, SPAN

if TYPE_CHECKING:  # `ensembles` reads the table where no onnx is installed
    from onnx import ModelProto

MAX_BATCH = 8  # of a plan; Triton is told the same
Range = tuple[int, int, int]
CANDIDATES: Range = (1, 100, MOST_CANDIDATES)


def axes(config: ModelConfig, beam_width: int = 128, item_tokens: int = 1) -> dict[str, Range]:
    """Axis -> (smallest, usual, largest): B requests, S prompt tokens, W beams, P beams of the level before; of a
    ranking's candidates I tokens and K codes.
    """
    beams = (1, beam_width, MAX_BEAM_WIDTH)
    span = (1, min(max(config.max_prompt // 2, SPAN), config.max_prompt), config.max_prompt)
    of_candidates = {"I": _times(CANDIDATES, item_tokens), "K": _times(CANDIDATES, config.levels)}
    return {"B": (1, 1, MAX_BATCH), "S": span, "W": beams, "P": beams, **of_candidates}


def _times(counts: Range, each: int) -> Range:
    low, usual, high = counts
    return each * low, each * usual, each * high


def profile(
    model: ModelProto, config: ModelConfig, beam_width: int = 128, item_tokens: int = 1
) -> dict[str, list[list[int]]]:
    """Input name -> shapes [smallest, usual, largest] of a plan's graph; `item_tokens`: t of its ranker."""
    table = axes(config, beam_width, item_tokens)
    return {
        port.name: [
            [table[d.dim_param][n] if d.dim_param else d.dim_value for d in port.type.tensor_type.shape.dim]
            for n in range(3)
        ]
        for port in model.graph.input
    }
