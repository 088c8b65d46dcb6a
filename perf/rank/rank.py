"""Rankings with and without reuse, by every choice of the prefix: requests a second of the real engine on one trace.

    genrec bench rank [--scale 100] [--requests 700] [--slo-ms 2500]
    genrec bench rank --model 384-2 --requests 5000 --slo-ms 200 --label in-proportion
    genrec bench rank --model 384-7 --requests 5000 --seeds 0,1,2,3,4,5 --ways recompute,hazard --label traces
    genrec bench rank --histories artifacts/ml-1m

A trace in the shape of BAT's Books (perf/rank/simulate.py), with users, items, rate and pool divided by `--scale`. The
model is the one of 31 M parameters. `--model 384-2` has layers of the paper's own model, Qwen2-1.5B, at a width of 384,
two of them, and prompts shrink as the width does: users have fewer tokens, and candidates are fewer. So attention is
13 % of a layer's operations, as it is there; of the 31 M model and the whole prompts it is 43 %, as prompts are longer
beside its width. In a world so small one user makes a seventh of all requests, and how long his history is moves what
reuse can save by a quarter: with several `--seeds` the figures are of as many traces together, each with new pools.
With `--histories` the users are an artifact's own, as long as they are; codes are an item's tokens.

Each way has a pool of its own. Ways take turns of 20 requests, the same for all: after each single request a way would
find the caches full of the others' weights, which no server does. Items' KV is computed beforehand, as `genrec pool
fill` does (BAT, section 5.2); users' by the first part of the trace, which is not counted. Time is what the passes, the
pool and the choice take in this process. The rate within a P99 is computed from these times: Poisson arrivals, one
after the other. `together` is `split` at saturation, up to eight rankings of the queue in one pass; how many would wait
at a rate is not known. Every tenth request is compared with what is computed without any reuse. `least_ms` is the
roofline: what products with the weights and attention take for the tokens that a way computes, at the rate of a plain
product on this machine. `choice_share` is the choice, the hashing of names, and all calls with the pool's table locked:
look-ups, room for a new entry, and its publication.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.ranking import RankExecutor, RankPlan
from genrec.errors import InputError
from genrec.kv.entries import EntryLayout
from genrec.models.config import ModelConfig
from genrec.pool.pool import Pool
from genrec.progress import counting
from genrec.rank.choice import POLICIES
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.settings import Settings
from perf.kit import machine, report, turns
from perf.rank.asked import Asked, own_users, requests_of
from perf.rank.figures import rates, ratios, summary, table
from perf.rank.mock_ranker import PAPER_WIDTH, SHAPE, mock_ranker, narrow
from perf.rank.operations import operations
from perf.rank.simulate import POOL_BYTES, SHAPES, TOKEN_BYTES, DataShape
from perf.rank.ways import TOGETHER, Answer, RankWay

WAYS = ("recompute", "user", "item", "greedy", "hazard", "split", TOGETHER)
WARM = 0.3
TURN = 20  # requests of one way before the next one's
CHECKED = 10  # every so many requests


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.arguments("rank", __doc__)
    parser.add_argument("--data", choices=list(SHAPES), default="books")
    parser.add_argument(
        "--scale", type=int, default=100, help="users, items, rate and pool are divided by this"
    )
    parser.add_argument("--requests", type=int, default=700)
    parser.add_argument(
        "--model", help="the paper's layers: width and how many, as 384-2; default: 31 M parameters"
    )
    parser.add_argument("--item-tokens", type=int, help="default: the data's own")
    parser.add_argument("--histories", type=Path, help="an artifact whose users these are")
    parser.add_argument("--slo-ms", type=float, default=2500.0, help="of a request at P99, its wait included")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", default="0", help="of traces, separated by commas")
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-ranker"))
    asked = parser.parse_args(arguments)
    model, prompts = model_of(asked.model)
    check(asked)
    run = report.begin(asked)
    shape = SHAPES[asked.data].scaled(asked.scale, prompts)
    asks = own_users(asked.histories, shape) if asked.histories else Asked(shape)
    if asked.item_tokens:
        asks = asks.with_items_of(asked.item_tokens)
    artifact = asked.artifact.with_name(
        f"{asked.artifact.name}-{asked.model or '31M'}-{asks.shape.item_tokens}"
    )
    mock_ranker(artifact, asks.shape.item_tokens, model)
    figures = measure(artifact, model, asks, asked)
    print(table(figures["ways"]))
    run.publish(figures, repeats=figures["counted"])


def check(asked: argparse.Namespace) -> None:
    """Raises InputError, before anything is made or measured."""
    known = (*POLICIES, TOGETHER)
    if not set(asked.ways.split(",")) <= set(known):
        raise InputError("ways", f"is {asked.ways!r}", ", ".join(known))
    report.numbers_of(asked, "seeds", 0)


def model_of(text: str | None) -> tuple[ModelConfig, float]:
    """The model and the length of its prompts over the paper's. Raises InputError."""
    if not text:
        return SHAPE, 1.0
    width, _, layers = text.partition("-")
    if (
        not (width.isdecimal() and layers.isdecimal())
        or not int(width)
        or int(width) % 384
        or not int(layers)
    ):
        raise InputError("model", f"is {text!r}", "width, a multiple of 384, and layers, as 384-2")
    return narrow(int(width), int(layers)), int(width) / PAPER_WIDTH


def measure(artifact: Path, model: ModelConfig, of: Asked, asked: argparse.Namespace) -> dict[str, Any]:
    """Every way over the traces of all seeds; `traces` has the ratios of each."""
    seeds = asked.seeds.split(",")
    traces = {seed: _of_one_trace(artifact, model, of, asked, int(seed)) for seed in seeds}
    answers = {
        name: [answer for given, _ in traces.values() for answer in given[name]]
        for name in asked.ways.split(",")
    }
    apart = float(np.max([apart for _, apart in traces.values()]))  # Python's own may lose NaN
    found, roofline = summary(answers, asked.slo_ms / 1e3), machine.roofline()
    has_bf16 = load_layout(Settings(artifact, artifact), model).kv_type == "bf16"
    for name, given in answers.items():
        least = sum(operations(answer.ranked, model) for answer in given) / len(given)
        found["ways"][name]["least_ms"] = 1e3 * roofline.seconds(least, 0.0, has_bf16)
    return {
        **found,
        "traces": {seed: ratios(rates(given)) for seed, (given, _) in traces.items()},
        "largest_difference": apart,
        "equal_answers": apart < 0.05,
        "shape": asdict(of.shape),
    }


def _of_one_trace(
    artifact: Path, model: ModelConfig, of: Asked, asked: argparse.Namespace, seed: int
) -> tuple[dict[str, list[Answer]], float]:
    """Answers of every way behind the first part, and how far scores lie from those without reuse at most."""
    shape = of.shape
    items, asks = requests_of(of, model, asked.requests, seed)
    kv_type = load_layout(Settings(artifact, artifact), model).kv_type
    layout = EntryLayout(model, shape.item_tokens, kv_type, model.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), model, kv_type, Settings(artifact, artifact))
    head = RankerHead.load(artifact / "onnx" / HEAD, model)

    def executor(pool: Pool | None, whole: str = "user") -> RankExecutor:
        return RankExecutor(passes, head, layout, "m", pool, whole)

    answers: dict[str, list[Answer]] = defaultdict(list)
    apart = 0.0
    with ExitStack() as stack:
        ways = []
        for name in asked.ways.split(","):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))) / "pool"
            sizes = sizes_of(shape, SHAPES[asked.data], name, layout.token_bytes)
            ways.append(RankWay(name, executor, folder, sizes, layout))
        computed = {order: executor(None, order) for order in ("user", "item", "split")}
        for way in counting("items", len(ways), "way", iterable=ways):
            way.fill(items)
        warm = int(WARM * len(asks))
        starts = range(0, len(asks), TURN)
        told = counting(f"rank, trace {seed}", len(starts), f"{TURN} requests", iterable=starts)
        for turn, first in enumerate(told):
            some = asks[first : first + TURN]
            for way in turns.order(ways, turn):
                given = way.ask_all(some)
                answers[way.name] += given[max(warm - first, 0) :]
                for (request, _), answer in list(zip(some, given, strict=True))[::CHECKED]:
                    order = "user" if answer.ranked.order == "whole" else answer.ranked.order
                    want, _ = computed[order].scores(request, RankPlan("whole", False, False))
                    # Unlike Python's own, this maximum keeps NaN
                    apart = float(np.maximum(apart, np.abs(answer.scores - want).max() / want.std()))
    return answers, apart


def sizes_of(shape: DataShape, whole: DataShape, name: str, token_bytes: int) -> tuple[int, int]:
    """Bytes for users and rows for items, in the paper's proportion; the user order alone has all of it for users.

    `shape` is a part of the `whole` world, whose pool is known.
    """
    items = 0 if name in ("user", "recompute") else whole.items
    left = POOL_BYTES / TOKEN_BYTES - items * shape.item_tokens  # tokens of the whole world's users
    part = shape.users * shape.user_tokens / (whole.users * whole.user_tokens)
    users = 0 if name in ("item", "recompute") else int(left * part) * token_bytes
    return users, shape.items if items else 0


if __name__ == "__main__":
    main()
