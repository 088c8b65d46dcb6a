"""Users who come again with a longer history: what their last prompt's KV, left in the pool, is worth.

    genrec bench returning [--ensemble recommend_draft --label draft]

One server of its own, asked by turns: without a `user_id`, so that every prompt is computed whole, and with it, so
that a prompt goes on behind what the pool has of its user. Histories are random items; those of a turn are nobody
else's, and both ways ask the same: of a history longer than the model reads, the window that it reads of a named user
(genrec/models/prompt.py). A user's first visit counts in neither: it has nothing to go on behind.

`equal_items` is the share of items that both ways answer. In bf16 what was computed in other batches may differ in the
last bits, and of random weights many items score nearly alike; in f32 the tests see equal answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.aio import AsyncRecommender
from clients.wire import Recommendation
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.models.prompt import window_start
from perf.kit import endpoints, report, turns, worth
from perf.kit.mock import SHAPE, mock_artifact

TOP_K = 10
MAX_HISTORY = 1000  # items of the default artifact
POOL_MB = 1024  # room for all users of a turn: where there is less, who has not been here for longest leaves
WAYS = ("whole", "named")
ENSEMBLES = ("recommend", "recommend_draft")
Histories = list[NDArray[np.int64]]  # one per user


class Asked(NamedTuple):
    """A server, one of its ensembles, how many items of a history it reads, and what it serves."""

    url: str
    ensemble: str
    most: int
    artifact: Path


class Visits(NamedTuple):
    """What the visits of one way took: seconds of all rounds but the first, of each answer, and the answers."""

    seconds: float
    each: list[float]
    answers: list[Recommendation]


def read(histories: Histories, most: int) -> Histories:
    """What a model that reads `most` items reads of named users' histories."""
    return [each[window_start(len(each), most) :] for each in histories]


async def visit(asked: Asked, rounds: Sequence[Histories], users: range | None, in_flight: int) -> Visits:
    """All users of a round, then all of the next, so many at a time."""
    each: list[float] = []
    answers: list[Recommendation] = []
    async with AsyncRecommender(asked.url, model=asked.ensemble) as recommender:
        total = 0.0
        for number, histories in enumerate(rounds):
            left, found = count(), dict[int, Recommendation]()

            async def ask(
                left: Any = left, histories: Histories = histories, found: dict[int, Recommendation] = found
            ) -> None:
                while (place := next(left)) < len(histories):
                    begun = asyncio.get_running_loop().time()
                    user = users[place] if users else None
                    found[place] = await recommender.recommend(histories[place], TOP_K, user_id=user)
                    each.append(asyncio.get_running_loop().time() - begun)

            begun = asyncio.get_running_loop().time()
            await asyncio.gather(*(ask() for _ in range(in_flight)))
            if number:
                total += asyncio.get_running_loop().time() - begun
                answers += [found[place] for place in range(len(histories))]
            else:
                each.clear()
    return Visits(total, each, answers)


def trace(items: NDArray[np.int64], prompt: int, users: int, visits: int, seed: int) -> list[Histories]:
    """Histories of `prompt` items and, with every later visit, one to four more: [visit][user]."""
    draw = np.random.default_rng(seed)
    whole = [draw.choice(items, prompt + 4 * (visits - 1)) for _ in range(users)]
    more = draw.integers(1, 5, (visits, users))
    more[0] = 0
    lengths = prompt + np.cumsum(more, 0)
    return [[line[:length] for line, length in zip(whole, row, strict=True)] for row in lengths.tolist()]


def measure(
    asked: Asked,
    items: NDArray[np.int64],
    prompt: int,
    users: int,
    visits: int,
    in_flight: int,
    turn_of: range,
) -> dict[str, Any]:
    """Both ways in turns. Every one of `turn_of` has users and histories of its own, which no other cell may have."""
    given: dict[str, list[Visits]] = {way: [] for way in WAYS}
    for number, way in turns.interleaved(WAYS, len(turn_of), f"{prompt} items, {in_flight} at a time"):
        turn = turn_of[number]
        rounds = trace(items, prompt, users, visits, turn)
        named = range(turn * users, (turn + 1) * users) if way == WAYS[1] else None
        if named is None:
            rounds = [read(histories, asked.most) for histories in rounds]
        given[way].append(asyncio.run(visit(asked, rounds, named, in_flight)))
    found: dict[str, Any] = {}
    for way, runs in given.items():
        found[way] = {
            "rate": median((visits - 1) * users / run.seconds for run in runs),
            "p50_ms": 1e3 * float(np.median(np.concatenate([run.each for run in runs]))),
        }
    common = [
        float(np.isin(theirs.item_ids, mine.item_ids).mean())
        for ours, plain in zip(*given.values(), strict=True)
        for mine, theirs in zip(ours.answers, plain.answers, strict=True)
    ]
    ratios = [plain.seconds / ours.seconds for plain, ours in zip(*given.values(), strict=True)]
    answers = [answer for runs in given.values() for run in runs for answer in run.answers]
    checked = worth.worth_of(asked.artifact, answers, TOP_K)
    return {
        **found, "ratio": median(ratios), "ratios": ratios, "equal_items": float(np.mean(common)), "worth": checked
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("returning", __doc__)
    parser.add_argument("--artifact", type=Path, help="default: 31 M parameters, random")
    parser.add_argument("--ensemble", choices=ENSEMBLES, default=ENSEMBLES[0])
    parser.add_argument("--prompts", default="85,341,1100", help="items of a first visit")
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--in-flight", default="1,4")
    report.add_options(parser, beam_width=128, rounds=3)
    a = parser.parse_args(arguments)
    each = list(product(report.numbers_of(a, "prompts"), report.numbers_of(a, "in_flight")))
    run = report.begin(a)
    drafts, artifact = a.ensemble == ENSEMBLES[1], a.artifact
    if not artifact:
        artifact = Path(f"artifacts/mock-3000{'-draft' if drafts else ''}")
        mock_artifact(artifact, replace(SHAPE, max_history=MAX_HISTORY), draft=drafts)
    config = load_config(artifact)
    items = load_catalogue(artifact, config).item_ids
    cells: dict[str, Any] = {}
    with endpoints.endpoint(
        artifact, beam_width=a.beam_width, ensembles=(a.ensemble,), pool_user_mb=POOL_MB
    ) as server:
        asked = Asked(server.grpc_url, a.ensemble, config.max_history, artifact)
        for cell, (prompt, in_flight) in enumerate(each):
            own = range(cell * a.rounds, (cell + 1) * a.rounds)
            found = measure(asked, items, prompt, a.users, a.visits, in_flight, own)
            tokens = (prompt - window_start(prompt, config.max_history)) * config.levels
            cells[f"{tokens} tokens, {in_flight} at a time"] = found
    rows = [
        (
            name, *(f"{cell[way][key]:.1f}" for way in WAYS for key in ("rate", "p50_ms")), f"{cell['ratio']:.2f}",
            f"{cell['equal_items']:.1%}",
        )
        for name, cell in cells.items()
    ]  # fmt: skip
    print(report.columns(("", "whole/s", "P50 ms", "named/s", "P50 ms", "times", "equal"), rows))
    checked = {name: cell.pop("worth") for name, cell in cells.items()}
    print(worth.lines(checked))
    spread = {name: cell.pop("ratios") for name, cell in cells.items()}
    cells = {name: cell | checked[name]._asdict() for name, cell in cells.items()}
    run.publish({"cells": cells}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
