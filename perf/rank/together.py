"""What rankings gain as one pass: in the order that is served (`split`), and at most in the user's.

    genrec bench rank_together [--model 384-7] [--user-tokens 396]

Rankings in order `split` whose entries are there run as one pass, up to eight, of which two and four are measured: the
weights are read once and the engine starts once; each has its own user and its own candidates. Several single passes
over one of them all is the gain. In the user's order there is no such pass. It would compute as much as one ranking of
all candidates, which the engine can run: that is measured, and so the figure is the most that it could gain. What
waiting for company costs is left out: a ranking that nobody waits behind runs alone. The model is the one of `genrec
bench rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, Split
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.kv.entries import EntryLayout
from genrec.models.config import ModelConfig
from genrec.settings import Settings
from perf.kit import report
from perf.kit.turns import in_turns, quartiles, timed
from perf.rank.mock_ranker import mock_ranker
from perf.rank.rank import model_of
from perf.rank.simulate import SHAPES

COUNTS = (1, 10, 25, 100)  # candidates of a ranking
COMPANY = (1, 2, 4)  # rankings of a pass
ORDERS = ("split", "user")


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
    cells = [cell(order, count, given) for order in ORDERS for count in COUNTS]
    head = ["order", "candidates", "ms", "two in one pass gain", "four"]
    rows = [
        [c["order"], c["candidates"], f"{c['ms']:.2f}", f"{c['two']:.2f}", f"{c['four']:.2f}"] for c in cells
    ]
    print(report.columns(head, rows))
    spread = {
        f"ms, {order}, {count} candidates, {many} in a pass": quartiles([1e3 * each for each in seconds])[1:]
        for (order, count, many), seconds in given.items()
    }
    run.publish({"cells": cells}, repeats=asked.rounds, spread=spread)


def passes_of(
    artifact: Path, model: ModelConfig, item_tokens: int, user_tokens: int
) -> dict[tuple[str, int, int], Callable[[], float]]:
    """(order, candidates, rankings) -> the seconds of a pass, with users' entries and, in `split`, items' there.

    Where so many rankings are no pass, they are one after the other.
    """
    kv_type = load_layout(Settings(artifact, artifact), model).kv_type
    layout = EntryLayout(model, item_tokens, kv_type, model.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), model, kv_type, Settings(artifact, artifact))
    draw, most = np.random.default_rng(0), max(COUNTS) * max(COMPANY)
    heads, width, kinds = model.num_key_value_heads, model.head_dim, range(2 * model.num_hidden_layers)
    span = layout.span(user_tokens)
    users: list[Array] = [np.zeros(layout.user_bytes(span), np.uint8) for _ in range(max(COMPANY))]
    table = np.zeros((most, len(kinds), heads, item_tokens, width), layout.dtype)
    tokens = draw.integers(0, model.vocab_size, (most, item_tokens))

    def split(count: int, many: int) -> None:
        rankings = [
            Split(
                np.arange(n * count, (n + 1) * count, dtype=np.int32),
                user_tokens,
                layout.whole(users[n], span),
            )
            for n in range(many)
        ]
        for first in range(0, many, passes.most):
            passes.split(table, rankings[first : first + passes.most])

    def user_first(count: int, many: int) -> None:
        passes.user_first(tokens[: count * many], user_tokens, layout.user(users[0], span))

    return {
        (order, count, many): partial(_seconds, run, count, many)
        for order, run in zip(ORDERS, (split, user_first), strict=True)
        for count in COUNTS
        for many in COMPANY
    }


def _seconds(run: Callable[[int, int], None], count: int, many: int) -> float:
    return timed(partial(run, count, many))[0]


def cell(order: str, count: int, given: dict[tuple[str, int, int], list[float]]) -> dict[str, Any]:
    """Of rankings of `count` candidates: alone, and what two or four in one pass gain."""
    alone, *more = (quartiles(given[order, count, many]).median for many in COMPANY)
    two, four = (company * alone / taken for company, taken in zip(COMPANY[1:], more, strict=True))
    return {"order": order, "candidates": count, "ms": 1e3 * alone, "two": two, "four": four}


if __name__ == "__main__":
    main()
