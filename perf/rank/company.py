"""What it is worth to a server that rankings which wait run as one pass: answers a second, and what a user waits.

    genrec bench rank_company [--model 384-7] [--history 132] [--in-flight 16]

Two servers take turns, one at a time, and differ by the time that a pass of several rankings may take, which is a share
of `rank_budget_ms`: where that is 1 ms every ranking is a pass of its own. Each is asked through its ensemble `rank`,
in order `split`, by so many in flight, of users and items that are in its pool. So what is compared is whole requests:
Triton's own work and that of the steps before and behind is in them. Users' histories are random, each of as many
items, and so are candidates, of the whole catalogue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from perf.kit import endpoints, report, turns
from perf.rank.in_flight import Load, Population, in_flight
from perf.rank.mock_ranker import ITEMS, mock_ranker
from perf.rank.rank import model_of
from perf.rank.simulate import SHAPES

BUDGETS_MS = {"apart": 1, "together": 50}  # the second is the default
COUNTS = (10, 25, 100)  # candidates
USERS = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("rank_company", __doc__)
    parser.add_argument("--model", default="384-7", help="the paper's layers: width and how many, as 384-2")
    parser.add_argument("--history", type=int, default=132, help="items of every user")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0, help="of every load")
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-ranker"))
    report.add_options(parser, rounds=3)
    a = parser.parse_args(arguments)
    run = report.begin(a)
    model, _ = model_of(a.model)
    each = SHAPES["books"].item_tokens
    artifact = a.artifact.with_name(f"{a.artifact.name}-{a.model}-{each}")
    mock_ranker(artifact, each, model)
    arms = {
        name: partial(measure, artifact, a.history, budget, a.in_flight, a.seconds)
        for name, budget in BUDGETS_MS.items()
    }
    found = turns.in_turns(arms, a.rounds, label="servers")
    loads = {count: [[each[count] for each in found[name]] for name in BUDGETS_MS] for count in COUNTS}
    cells = [cell(count, *both) for count, both in loads.items()]
    head = ["candidates", "apart/s", "together/s", "gain", "P99 ms apart", "together"]
    print(report.columns(head, [[f"{value:.4g}" for value in each.values()] for each in cells]))
    spread = {f"gain, {count} candidates": turns.extremes(gains(*both))[1:] for count, both in loads.items()}
    run.publish({"cells": cells}, repeats=a.rounds, spread=spread)


def measure(artifact: Path, history: int, budget_ms: int, many: int, seconds: float) -> dict[int, Load]:
    """Candidates of a ranking -> what a server with this budget does."""
    with endpoints.endpoint(
        artifact, pool_user_mb=256, pool_item_mb=512, pool_fill="none", rank_budget_ms=budget_ms
    ) as server:
        return {
            count: asyncio.run(
                in_flight(server.grpc_url, artifact, Population(USERS, history, count, ITEMS), many, seconds)
            )
            for count in COUNTS
        }


def gains(apart: Sequence[Load], together: Sequence[Load]) -> list[float]:
    """Of each round."""
    return [with_it.rate / without.rate for without, with_it in zip(apart, together, strict=True)]


def cell(count: int, apart: Sequence[Load], together: Sequence[Load]) -> dict[str, Any]:
    """Medians over the rounds; `gain` is that of the rounds' ratios."""
    return {
        "candidates": count,
        "apart": median(each.rate for each in apart),
        "together": median(each.rate for each in together),
        "gain": median(gains(apart, together)),
        "apart_p99_ms": median(each.p99_ms for each in apart),
        "together_p99_ms": median(each.p99_ms for each in together),
    }


if __name__ == "__main__":
    main()
