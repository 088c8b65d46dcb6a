"""Rankings with and without reuse, by every choice of the prefix: requests a second of the real engine on one trace.

    genrec bench rank [--scale 100] [--requests 700] [--tokens 1] [--slo-ms 2500]

A trace in the shape of BAT's Books (perf/rank/simulate.py), with users, items, rate and pool divided by `--scale`, and
tokens of users and items multiplied by `--tokens`. Each way has a pool of its own; a request goes through all ways, one
after the other in turns, before the next request comes. Items' KV is computed beforehand, as `genrec pool fill` does
(BAT, section 5.2); users' by the first part of the trace, which is not counted. Time is what the passes, the pool and
the choice take in this process. The rate within a P99 is computed from these times: Poisson arrivals, one after the
other. Every tenth request is compared with what is computed without any reuse.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.prefix import PrefixChooser
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest, Reuse
from genrec.kv.entries import EntryLayout
from genrec.pool.mapping import Mapping, PoolTable
from genrec.pool.pool import Pool
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.settings import Settings
from perf.kit import report
from perf.rank.mock_ranker import SHAPE as MODEL
from perf.rank.mock_ranker import mock_ranker
from perf.rank.simulate import CANDIDATES, POOL_BYTES, SHAPES, TOKEN_BYTES, DataShape, Trace, trace

WAYS = ("recompute", "user", "item", "greedy", "hazard", "split")
BEST = ("greedy", "past", "hazard", "split")
WARM = 0.3
CHECKED = 10  # every so many requests
TTL_S = 1e6  # the trace's own time is slow


class TimedPool(Pool):
    """Counts the seconds in which the table is held."""

    seconds = 0.0

    def locked(self, work: Callable[[Mapping, PoolTable], Any], otherwise: Any) -> Any:
        """See `Pool.locked`."""
        begun = time.perf_counter()
        try:
            return super().locked(work, otherwise)
        finally:
            self.seconds += time.perf_counter() - begun


class Answer(NamedTuple):
    """One ranking: its scores, what was reused, in which order, and the seconds of choice and of all."""

    scores: NDArray[np.float32]
    reuse: Reuse
    order: str
    choice_s: float
    total_s: float


class RankWay:
    """One choice of the prefix with a pool of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[Pool], RankExecutor],
        folder: Path,
        sizes: tuple[int, int],
        layout: EntryLayout,
    ) -> None:
        self.name, self._now = name, 1
        users, rows = sizes
        Pool.create(folder, users, rows, layout.item_bytes)
        self._pool = TimedPool(folder, clock=lambda: self._now, ttl_s=TTL_S)
        self._chooser = PrefixChooser(name, layout, "m", self._pool)
        if self._chooser.policy:
            self._pool.rule = self._chooser.policy
        self._executor = make(self._pool)

    def fill(self, items: NDArray[np.int32]) -> None:
        """Compute the KV of all items [n, t], where there is room for items."""
        if self._executor.item_places:
            for start in range(0, len(items), CANDIDATES):
                self._executor.keep_items(items[start : start + CANDIDATES])

    def ask(self, request: RankRequest, now: int) -> Answer:
        """Choose and rank."""
        self._now, self._pool.seconds = now, 0.0
        begun = time.perf_counter()
        plan = self._chooser.choose(request.owner, request.tokens, request.candidates, now)
        chosen = time.perf_counter()
        inside = self._pool.seconds
        scores, reuse = self._executor.scores(request, RankPlan(plan.order, plan.keep_user, plan.keep_items))
        ended = time.perf_counter()
        return Answer(scores, reuse, plan.order, chosen - begun + self._pool.seconds - inside, ended - begun)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.arguments("rank", __doc__)
    parser.add_argument("--data", choices=list(SHAPES), default="books")
    parser.add_argument(
        "--scale", type=int, default=100, help="users, items, rate and pool are divided by this"
    )
    parser.add_argument("--requests", type=int, default=700)
    parser.add_argument("--tokens", type=float, default=1.0, help="factor of users' and items' tokens")
    parser.add_argument("--slo-ms", type=float, default=2500.0, help="of a request at P99, its wait included")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-ranker"))
    asked = parser.parse_args(arguments)
    run = report.begin(asked)
    shape = SHAPES[asked.data].scaled(asked.scale, asked.tokens)
    artifact = asked.artifact.with_name(f"{asked.artifact.name}-{shape.item_tokens}")
    mock_ranker(artifact, shape.item_tokens)
    figures = measure(artifact, shape, asked)
    print(table(figures["ways"]))
    run.publish(figures, repeats=figures["counted"])


def measure(artifact: Path, shape: DataShape, asked: argparse.Namespace) -> dict[str, Any]:
    """Every way over the trace."""
    items, asks = requests_of(shape, asked.requests, asked.seed)
    kv_type = load_layout(Settings(artifact, artifact), MODEL).kv_type
    layout = EntryLayout(MODEL, shape.item_tokens, kv_type, MODEL.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), MODEL, kv_type, 0, 1)
    head = RankerHead.load(artifact / "onnx" / HEAD, MODEL)

    def executor(pool: Pool | None, whole: str = "user") -> RankExecutor:
        return RankExecutor(passes, head, layout, "m", pool, whole)

    answers: dict[str, list[Answer]] = defaultdict(list)
    apart = 0.0
    with ExitStack() as stack:
        ways = []
        for name in asked.ways.split(","):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))) / "pool"
            ways.append(RankWay(name, executor, folder, sizes_of(shape, asked, name, layout), layout))
        computed = {order: executor(None, order) for order in ("user", "item", "split")}
        for way in tqdm(ways, desc="items", unit="way"):
            way.fill(items)
        warm = int(WARM * len(asks))
        for number, (request, now) in enumerate(tqdm(asks, desc="rank", unit="request")):
            turn = number % len(ways)
            for way in ways[turn:] + ways[:turn]:
                answer = way.ask(request, now)
                if number >= warm:
                    answers[way.name].append(answer)
                if number % CHECKED == 0:
                    order = "user" if answer.order == "whole" else answer.order
                    want, _ = computed[order].scores(request, RankPlan("whole", False, False))
                    apart = max(apart, float(np.abs(answer.scores - want).max() / want.std()))
    return {
        **summary(answers, asked.slo_ms / 1e3),
        "largest_difference": apart,
        "equal_answers": apart < 0.05,
    }


def sizes_of(shape: DataShape, asked: argparse.Namespace, name: str, layout: EntryLayout) -> tuple[int, int]:
    """Bytes for users and rows for items, in the paper's proportion; the user order alone has all of it for users."""
    whole = SHAPES[asked.data]
    items = 0 if name in ("user", "recompute") else whole.items
    tokens = (POOL_BYTES / TOKEN_BYTES - items * whole.item_tokens) / asked.scale * asked.tokens
    users = 0 if name in ("item", "recompute") else int(tokens) * layout.token_bytes
    return users, shape.items if items else 0


def requests_of(
    shape: DataShape, count: int, seed: int
) -> tuple[NDArray[np.int32], list[tuple[RankRequest, int]]]:
    """Tokens of all items [n, t], and the trace's rankings: a user's own random tokens, candidates by Zipf's law."""
    found: Trace = trace(shape, count, seed)
    draw, levels = np.random.default_rng(seed), MODEL.levels
    popular = np.cumsum((np.arange(shape.items) + 10.0) ** -1.0)
    items = draw.integers(0, MODEL.vocab_size, (shape.items, shape.item_tokens)).astype(np.int32)
    codes = draw.integers(0, MODEL.vocab_size, (shape.items, levels)).astype(np.int32)
    asks = []
    for user, when, tokens in zip(found.user[:count], found.when[:count], found.tokens[:count], strict=True):
        length = max(int(tokens) // levels * levels, levels)
        own = np.random.default_rng([seed, int(user)]).integers(0, MODEL.vocab_size, length).astype(np.int32)
        rows = np.unique(np.searchsorted(popular / popular[-1], draw.random(4 * CANDIDATES)))
        rows = draw.permutation(rows)[:CANDIDATES]
        asks.append((RankRequest(int(user), own, items[rows], codes[rows]), int(when)))
    return items, asks


def summary(answers: dict[str, list[Answer]], slo_s: float) -> dict[str, Any]:
    """Figures of every way, and the ratios that the claims are of."""
    ways = {}
    for name, given in answers.items():
        seconds = np.array([each.total_s for each in given])
        reused = sum(each.reuse.user + each.reuse.items for each in given)
        computed = sum(each.reuse.computed for each in given)
        ways[name] = {
            "rate": len(given) / seconds.sum(),
            "ms": 1e3 * float(np.median(seconds)),
            "reused_share": reused / (reused + computed),
            "computed_tokens": computed / len(given),
            "copied_bytes": sum(each.reuse.copied for each in given) / len(given),
            "choice_share": sum(each.choice_s for each in given) / seconds.sum(),
            "slo_rate": rate_within(seconds, slo_s),
        }

    def ratio(figure: str, over: str, of: Sequence[str]) -> float | None:
        best = max((ways[name][figure] for name in of if name in ways), default=0.0)
        return best / ways[over][figure] if over in ways and ways[over][figure] else None

    return {
        "counted": len(next(iter(answers.values()))),
        "over_user_prefix": ratio("rate", "user", BEST),
        "over_user_prefix_paper": ratio("rate", "user", BEST[:3]),
        "over_recompute": ratio("rate", "recompute", BEST),
        "over_recompute_paper": ratio("rate", "recompute", BEST[:3]),
        "reused_share": max(ways[name]["reused_share"] for name in BEST if name in ways),
        "slo_rate_over_user_prefix": ratio("slo_rate", "user", BEST),
        "slo_rate_over_user_prefix_paper": ratio("slo_rate", "user", BEST[:3]),
        "choice_share": max(ways[name]["choice_share"] for name in BEST if name in ways),
        "ways": ways,
    }


def rate_within(seconds: NDArray[np.float64], slo_s: float, seed: int = 0) -> float:
    """Requests a second at which 99 % of Poisson arrivals, served one after the other, wait and run at most `slo_s`."""
    gaps = np.random.default_rng(seed).exponential(1.0, (20, len(seconds)))

    def holds(rate: float) -> bool:
        waits = []
        for row in gaps:
            free = 0.0
            arrivals = np.cumsum(row / rate)
            for at, takes in zip(arrivals, seconds, strict=True):
                free = max(free, at) + takes
                waits.append(free - at)
        return float(np.quantile(waits, 0.99)) <= slo_s

    low, high = 0.0, 1 / float(seconds.mean())
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def table(ways: dict[str, dict[str, float]]) -> str:
    """For people."""
    head = [
        "",
        "requests/s",
        "ms",
        "reused %",
        "tokens computed",
        "KB copied",
        "choice %",
        "requests/s in P99",
    ]
    rows = [
        [
            name, f"{w['rate']:.2f}", f"{w['ms']:.1f}", f"{100 * w['reused_share']:.0f}", f"{w['computed_tokens']:.0f}",
            f"{w['copied_bytes'] / 1024:.0f}", f"{100 * w['choice_share']:.2f}", f"{w['slo_rate']:.2f}",
        ]
        for name, w in ways.items()
    ]  # fmt: skip
    return report.columns(head, rows)


if __name__ == "__main__":
    main()
