"""A dynamic embedding table beside what else finds a row by its id.

    genrec bench embedding [--quick] [--sizes 1000000,10000000] [--repeats 7] [--no-install]

Look-ups are of 2 million ids that are there, drawn uniformly, nanoseconds per id; torch.searchsorted, which managed
collisions do, and ours in C++ take all cores, the others one thread. Inserts come in batches of 65,536, into a table
with room and into one that grows from nothing. `over_searchsorted_*` is its time over ours. `over_static` is the time
of a static table (torch's embedding of known rows) over that of a training look-up, which finds or makes rows and
counts: 1 is as fast, and the goal is above 1 / 1.15. `over_mch` compares look-ups trained per second on two ranks with
TorchRec's managed collisions, of theirs only those answered by a row of their own; it needs an environment that pip
makes at the first run (1.1 GB). The largest pause is the longest of all inserts of 4,096 ids, up to the largest size.

Bytes per id are those of a table that has grown to a size and moved all its ids; while it moves, the lines that it
leaves are there too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from genrec.compiled import can_be_compiled
from perf.kit import report
from perf.kit.turns import Spread, extremes, in_turns, timed
from perf.peers.refusal import Refusal
from perf.training.group import RankGroup, add_options, python_for
from training.embedding.compiled import Compiled
from training.embedding.index import Index
from training.embedding.kernels import Kernels, best_kernels
from training.embedding.portable import Portable
from training.embedding.table import DynamicTable

DYNAMIC = "dynamic table, {}"
TORCH, NUMPY = "torch.searchsorted", "numpy.searchsorted"
INSERT_BATCH, PAUSE_BATCH = 1 << 16, 1 << 12
STATIC_DIM, STATIC_BATCH = 64, 100_000
RANKS = 2


def kinds() -> list[Kernels]:
    """Those that run here; the first is the one that is used."""
    return [Compiled(), Portable()] if can_be_compiled() else [Portable()]


def look_ups(ids: np.ndarray, queries: int, repeats: int) -> dict[str, Spread]:
    """Nanoseconds per id of every way; all answers are held against each other."""
    asked = np.random.default_rng(1).choice(ids, queries)
    order = np.argsort(ids)
    in_order, as_torch, torch_asked = ids[order], torch.from_numpy(ids[order]), torch.from_numpy(asked)
    ways: dict[str, Callable[[], np.ndarray]] = {
        TORCH: lambda: torch.searchsorted(as_torch, torch_asked).numpy(),
        NUMPY: lambda: np.searchsorted(in_order, asked),
    }
    for kernels in kinds():
        index = Index(kernels, len(ids))
        index.insert(in_order)  # so that row i is the i-th in order, as the others answer
        ways[DYNAMIC.format(kernels.name)] = lambda index=index: index.find(asked)
    truth = ways[NUMPY]()

    def turn(name: str) -> float:
        seconds, found = timed(ways[name])
        if not np.array_equal(found, truth):
            raise AssertionError(f"{name} answers wrongly")
        return seconds / queries * 1e9

    arms = {name: lambda name=name: turn(name) for name in ways}
    taken = in_turns(arms, repeats, warm_ups=1, label=f"look-ups, {len(ids)} ids")
    return {name: extremes(each) for name, each in taken.items()}


def inserts(ids: np.ndarray, repeats: int) -> tuple[dict[str, Spread], float]:
    """Nanoseconds per new id, with room and growing; bytes per id beside its vector after growing."""
    beside: list[float] = []

    def turn(kernels: Kernels, room: int) -> float:
        index = Index(kernels, room)
        seconds, _ = timed(
            lambda: [index.insert(ids[at : at + INSERT_BATCH]) for at in range(0, len(ids), INSERT_BATCH)]
        )
        beside.append(index.nbytes / len(index) + 8)  # counter and stamp
        return seconds / len(ids) * 1e9

    arms = {}
    for kernels in kinds():
        for way, room in (("with room", len(ids)), ("growing", 0)):
            arms[f"{kernels.name}, {way}"] = lambda kernels=kernels, room=room: turn(kernels, room)
    taken = in_turns(arms, repeats, warm_ups=1, label=f"inserts, {len(ids)} ids")
    return {name: extremes(each) for name, each in taken.items()}, max(beside)


def pauses(ids: np.ndarray) -> dict[str, float]:
    """Milliseconds of inserts of a few thousand ids while a table with vectors grows to all of them."""
    table, taken = DynamicTable(8), []
    for at in range(0, len(ids), PAUSE_BATCH):
        begun = time.perf_counter()
        table.rows_of(ids[at : at + PAUSE_BATCH])
        taken.append((time.perf_counter() - begun) * 1e3)
    return {"largest": round(max(taken), 3), "median": round(float(np.median(taken)), 3)}


def over_static(ids: np.ndarray, repeats: int) -> Spread:
    """Time of torch's embedding of known rows over that of our look-up, batch by batch, one thread each."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    table = DynamicTable(STATIC_DIM, room=len(ids))
    static = torch.from_numpy(table.look_up(ids))
    rows = np.random.default_rng(2).integers(0, len(ids), (repeats + 1, 8, min(STATIC_BATCH, len(ids))))

    def turn(number: list[int], asked: np.ndarray, look_up: Callable[[np.ndarray], object]) -> float:
        batches = asked[number[0]]
        number[0] += 1
        return sum(timed(lambda batch=batch: look_up(batch))[0] for batch in batches)

    ours, theirs = [0], [0]
    arms = {
        "ours": lambda: turn(ours, ids[rows], table.look_up),
        "static": lambda: turn(
            theirs, rows, lambda at: torch.nn.functional.embedding(torch.from_numpy(at), static)
        ),
    }
    taken = in_turns(arms, repeats, warm_ups=1, label="beside a static table")
    torch.set_num_threads(cores)
    return extremes([s / o for s, o in zip(taken["static"], taken["ours"], strict=True)])


def beside_mch(a: argparse.Namespace) -> dict[str, Any]:
    """Look-ups trained per second, ours and of managed collisions, and the share that has a row of its own."""
    total = (a.rounds + 1) * a.steps
    options = {"dim": STATIC_DIM, "vocabulary": a.vocabulary, "sequences": a.sequences, "steps": total}
    workers = {"mch": ("worker_mch.py", "torchrec"), "ours": ("worker_ours.py", "")}
    with ExitStack() as stack:
        groups = {}
        for name, (script, environment) in workers.items():
            python = python_for(environment, a.folder / "envs", a.install)
            group = RankGroup(python, script, RANKS, interval=a.interval, **options)
            groups[name] = stack.enter_context(group)
        done = dict.fromkeys(groups, 0)

        def turn(name: str) -> float:
            first, done[name] = done[name], done[name] + a.steps
            told = groups[name].ask(do="train", first=first, last=done[name])
            return a.steps * a.sequences * RANKS / max(each["seconds"] for each in told)

        arms = {name: lambda name=name: turn(name) for name in groups}
        taken = in_turns(arms, a.rounds, warm_ups=1, label="beside managed collisions")
        counts = np.sum(groups["mch"].ask(do="answered", first=a.steps, last=total), 0)
    share = counts[0] / counts[1]
    ratios = extremes([o / (m * share) for o, m in zip(taken["ours"], taken["mch"], strict=True)])
    return {
        "ours_sequences_s": round(extremes(taken["ours"]).median, 1),
        "mch_sequences_s": round(extremes(taken["mch"]).median, 1),
        "mch_share_of_own_rows": round(float(share), 4),
        "over_mch": round(ratios.median, 3),
        "ends": [ratios.low, ratios.high],
    }


def size_name(size: int) -> str:
    """How figures name it: whole millions as 10m, any other in full."""
    millions, rest = divmod(size, 1_000_000)
    return str(size) if rest or not millions else f"{millions}m"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = report.arguments("embedding", __doc__)
    add_options(parser)
    parser.add_argument("--sizes", default="1000000,10000000")
    parser.add_argument("--queries", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=5, help="beside managed collisions")
    parser.add_argument("--steps", type=int, default=20, help="per round")
    parser.add_argument(
        "--interval", type=int, default=10, help="steps between updates of managed collisions"
    )
    a = parser.parse_args(argv)
    if a.quick:
        a.sizes, a.queries, a.repeats = "10000,100000", 20_000, 1
        a.rounds, a.steps, a.interval, a.sequences, a.vocabulary = 1, 4, 2, 8, 10_000
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per size and, last, one JSON object."""
    a = arguments(argv)
    sizes = sorted(report.numbers_of(a, "sizes"))  # the pauses are of the last one
    run = report.begin(a)
    figures: dict[str, Any] = {"look_up_ns": {}, "insert_ns": {}, "skipped": {}}
    spread: dict[str, Sequence[float]] = {}
    best = DYNAMIC.format(best_kernels().name)
    for size in sizes:
        ids = np.unique(np.random.default_rng(0).integers(-(2**62), 2**62, size))
        np.random.default_rng(3).shuffle(ids)
        found, (added, beside) = look_ups(ids, a.queries, a.repeats), inserts(ids, max(a.repeats // 2, 1))
        figures["look_up_ns"][str(size)] = {name: round(each.median, 1) for name, each in found.items()}
        figures["insert_ns"][str(size)] = {name: round(each.median, 1) for name, each in added.items()}
        figures[f"over_searchsorted_{size_name(size)}"] = round(found[TORCH].median / found[best].median, 2)
        figures["bytes_per_key"] = max(round(beside, 2), figures.get("bytes_per_key", 0.0))
        spread |= {f"{way}, {size} ids": (each.low, each.high) for way, each in (found | added).items()}
        rows = [
            (way, f"{m.median:.1f}", f"{m.low:.1f} to {m.high:.1f}") for way, m in (found | added).items()
        ]
        print(
            f"\n{size} ids, {beside:.1f} bytes beside the vector\n"
            + report.columns(("", "ns/id", "least to most"), rows)
        )
    paused = pauses(ids)
    figures["pause_ms"], figures["largest_pause_ms"] = paused, paused["largest"]
    static = over_static(ids[:1_000_000], a.repeats)
    figures["over_static"], spread["over_static"] = round(static.median, 3), (static.low, static.high)
    try:
        figures |= beside_mch(a)
        spread["over_mch"] = figures.pop("ends")
    except Refusal as refusal:
        figures["over_mch"], figures["skipped"]["managed collisions"] = None, refusal.reason
        print(f"skipped: managed collisions: {refusal.reason}")
    run.publish(figures, repeats=a.repeats, spread=spread)


if __name__ == "__main__":
    main()
