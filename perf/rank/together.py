"""What rankings would gain if several ran as one pass: at most, by the passes of the real engine.

    genrec bench rank_together [--model 384-7] [--user-tokens 396]

A ranking is a pass of its own. Several in one pass would read the weights once and start the engine once; they would
compute as much. So two rankings of C candidates in one pass take at least as long as one ranking of 2 C, which the
engine can run: that is measured here, and two single ones over it is the most that company is worth. Half of what a
pass of one candidate takes is the most that passes in different orders could save. What waiting for company costs is
left out. The model is the one of `genrec bench rank`, in the order that it is served in (`split`, both entries there),
and in the user's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.kv.entries import EntryLayout
from genrec.models.config import ModelConfig
from genrec.settings import Settings
from perf.kit import report
from perf.kit.turns import extremes, in_turns, timed
from perf.rank.mock_ranker import mock_ranker
from perf.rank.rank import model_of
from perf.rank.simulate import SHAPES

COUNTS = (1, 10, 25, 100)  # candidates of a ranking
COMPANY = (1, 2, 4)  # rankings of a pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("rank_together", __doc__)
    parser.add_argument("--model", default="384-7", help="the paper's layers: width and how many, as 384-2")
    parser.add_argument("--user-tokens", type=int, default=396)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-ranker"))
    report.add_options(parser, rounds=40)
    asked = parser.parse_args(arguments)
    run = report.begin(asked)
    model, _ = model_of(asked.model)
    each = SHAPES["books"].item_tokens
    artifact = asked.artifact.with_name(f"{asked.artifact.name}-{asked.model}-{each}")
    mock_ranker(artifact, each, model)
    arms = passes_of(artifact, model, each, asked.user_tokens)
    given = in_turns(arms, asked.rounds, warm_ups=3, label="passes")
    cells = [cell(order, count, given) for order in ("split", "user") for count in COUNTS]
    head = ["order", "candidates", "ms", "two in one pass gain at most", "four"]
    rows = [
        [c["order"], c["candidates"], f"{c['ms']:.2f}", f"{c['two']:.2f}", f"{c['four']:.2f}"] for c in cells
    ]
    print(report.columns(head, rows))
    run.publish({"cells": cells}, repeats=asked.rounds)


def passes_of(
    artifact: Path, model: ModelConfig, item_tokens: int, user_tokens: int
) -> dict[tuple[str, int], Callable[[], float]]:
    """(order, candidates) -> the seconds of a pass, with the user's entry and, in order split, the items' there."""
    kv_type = load_layout(Settings(artifact, artifact), model).kv_type
    layout = EntryLayout(model, item_tokens, kv_type, model.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), model, kv_type, 0, 1)
    draw, most = np.random.default_rng(0), max(COUNTS) * max(COMPANY)
    heads, width = model.num_key_value_heads, model.head_dim
    user = [
        np.zeros((1, heads, layout.span(user_tokens), width), layout.dtype)
        for _ in range(2 * model.num_hidden_layers)
    ]
    table = np.zeros((most, 2 * model.num_hidden_layers, heads, item_tokens, width), layout.dtype)
    tokens = draw.integers(0, model.vocab_size, (most, item_tokens))
    arms: dict[tuple[str, int], Callable[[], float]] = {}
    for count in sorted({count * company for count in COUNTS for company in COMPANY}):
        rows = np.arange(count, dtype=np.int32)
        split = partial(passes.split, table, rows, user_tokens, user)
        first = partial(passes.user_first, tokens[:count], user_tokens, user)
        arms["split", count] = lambda work=split: timed(work)[0]
        arms["user", count] = lambda work=first: timed(work)[0]
    return arms


def cell(order: str, count: int, given: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    """Of rankings of `count` candidates: alone, and the most that two or four in one pass gain."""
    alone, *more = (extremes(given[order, count * company]).median for company in COMPANY)
    two, four = (company * alone / taken for company, taken in zip(COMPANY[1:], more, strict=True))
    return {"order": order, "candidates": count, "ms": 1e3 * alone, "two": two, "four": four}


if __name__ == "__main__":
    main()
