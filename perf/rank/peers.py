"""A user's prefix is there, 100 candidates are not ranked yet: ours beside what people would use, the same weights.

    genrec bench rank_peers [--peers transformers,vllm] [--prompts 528,1488] [--rounds 15]

Transformers ranks them in one pass behind a copy of the cached prefix, items masked from each other, all at the same
positions; vLLM takes a prompt per candidate and finds the prefix in its cache. Both give the likelihood of the
candidates' codes, ours one discriminant token per candidate. Ours reuses the user's KV and computes the candidates
(`user`, and `split` with items that are missing), or reuses both (`split`). `half the layers` is a ranker whose
discriminant tokens have the generator's last ones alone. `least_ms` is the roofline of ours: of the products and the
attention that a way cannot do without. Transformers predicts an item's last code and computes two tokens of it; ours
computes three and a discriminant one, so with the user's KV alone its limit is near what transformers takes.

vLLM caches blocks of 16 tokens. Prompts are whole blocks and whole items, so that its cache has all of the prefix and,
after the first round, nothing of a candidate.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from genrec.cores import usable_cores
from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.errors import InputError
from genrec.kv.entries import EntryLayout
from genrec.pool.pool import Pool
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.settings import Settings
from perf.kit import machine, report
from perf.kit.turns import in_turns, quartiles, timed
from perf.peers.envs import install
from perf.peers.folder import write_hugging_face
from perf.peers.peer import GIB, Deadline, Peer, Worker
from perf.peers.refusal import Refusal
from perf.rank.mock_ranker import SHAPE, mock_ranker
from perf.rank.operations import Ranked, operations

PEERS = ("transformers", "vllm")
CANDIDATES = 100
LIMIT_S = 120.0
USER, SPLIT, BOTH = "ours, user first, user there", "ours, split, user there", "ours, split, both there"
WAYS = {  # the order, and whether items' KV is there
    "ours, nothing there": ("whole", False), USER: ("user", False), SPLIT: ("split", False), BOTH: ("split", True),
}  # fmt: skip
HALF = ", half the layers"
HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.arguments("rank_peers", __doc__)
    parser.add_argument("--peers", default="transformers")
    parser.add_argument("--prompts", default="528,1488")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/rank-peers"))
    parser.add_argument("--envs", type=Path, default=Path("artifacts/peers/envs"))
    asked = parser.parse_args(arguments)
    if not set(asked.peers.split(",")) <= set(PEERS):
        raise InputError("peers", f"is {asked.peers!r}", ", ".join(PEERS))
    report.numbers_of(asked, "prompts", SHAPE.levels)
    run = report.begin(asked)
    artifact, half = asked.folder / "artifact", asked.folder / "half-the-layers"
    mock_ranker(artifact, SHAPE.levels)
    mock_ranker(half, SHAPE.levels, layers=SHAPE.num_hidden_layers // 2)
    write_hugging_face(artifact, asked.folder / "hugging_face")
    cells = [row for span in asked.prompts.split(",") for row in measure(artifact, half, asked, int(span))]
    has_bf16 = load_layout(Settings(artifact, artifact), SHAPE).kv_type == "bf16"
    roofline = machine.roofline()
    for cell in cells:
        counted = least_operations(cell["system"], cell["prompt"])
        cell["least_ms"] = 1e3 * roofline.seconds(counted, 0.0, has_bf16) if counted else None
    print(report.columns(["", "prompt", "ms", "least ms", "times"], [row(cell) for cell in cells]))
    claims = {
        claim: {name: least_ratio(cells, name, ways) for name in PEERS}
        for claim, ways in (("over", (BOTH,)), ("over_user_there", (USER, SPLIT)))
    }
    spread = {f"ms, {cell['system']}, {cell['prompt']} tokens": cell.pop("ends") for cell in cells}
    run.publish({**claims, "cells": cells}, repeats=asked.rounds, spread=spread)


def row(cell: dict[str, Any]) -> list[Any]:
    """The same for people."""
    times = (cell[name] for name in ("ms", "least_ms", "over_ours"))
    return [cell["system"], cell["prompt"], *("-" if value is None else f"{value:.1f}" for value in times)]


def least_ratio(cells: Sequence[dict[str, Any]], peer: str, ways: Sequence[str]) -> float | None:
    """A peer's time over that of our best of `ways`, at the prompt where it is least; None where it was not run."""
    found = (
        cell["ms"] / min(c["ms"] for c in cells if c["prompt"] == cell["prompt"] and c["system"] in ways)
        for cell in cells
        if cell["system"] == peer
    )
    return min(found, default=None)


def least_operations(system: str, span: int) -> int:
    """What one of our ways cannot do without, behind `span` tokens of a user; 0 for a peer."""
    way = system.removesuffix(HALF)
    if way not in WAYS:
        return 0
    order, items_there = WAYS[way]
    user_there = span if order != "whole" else 0
    items = CANDIDATES if items_there else 0
    asked = Ranked(order, span, CANDIDATES, SHAPE.levels, user_there, items, CANDIDATES)
    marks = operations(asked._replace(items_reused=CANDIDATES), SHAPE)
    half = replace(SHAPE, num_hidden_layers=SHAPE.num_hidden_layers // 2)
    saved = marks - operations(asked._replace(items_reused=CANDIDATES), half) if way != system else 0
    return operations(asked, SHAPE) - saved


def measure(artifact: Path, half: Path, asked: argparse.Namespace, span: int) -> list[dict[str, Any]]:
    """Milliseconds of every way at one length of prompt: the median, and quartiles as `ends`; `over_ours` is over
    `split` with both entries.

    `half` has a ranker of half the layers.
    """
    draw = np.random.default_rng(span)
    tokens = draw.integers(0, SHAPE.vocab_size, span // SHAPE.levels * SHAPE.levels).astype(np.int32)
    items = draw.integers(0, SHAPE.vocab_size, (CANDIDATES, SHAPE.levels)).astype(np.int32)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        arms = ours(artifact, folder, tokens, items)
        of_half = ours(half, folder / "half", tokens, items)
        arms |= {name + HALF: of_half[name] for name in (SPLIT, BOTH)}
        for name in asked.peers.split(","):
            try:
                peer = peer_of(name, artifact, asked, span)
                stack.callback(peer.stop)
                peer.start(1)
                peer.ask(Deadline(LIMIT_S), do="prefix", tokens=tokens.tolist())
            except Refusal as error:
                print(f"{name}: {error.reason}")
                continue
            arms[peer.name] = lambda peer=peer: peer.ask(Deadline(LIMIT_S), do="rank", items=items.tolist())[
                1
            ]
        given = in_turns(arms, asked.rounds, warm_ups=2, label=f"{span} tokens")
    taken = {name: quartiles([1e3 * each for each in seconds]) for name, seconds in given.items()}
    return [
        {
            "system": name,
            "prompt": span,
            "ms": ms.median,
            "over_ours": ms.median / taken[BOTH].median,
            "ends": ms[1:],
        }
        for name, ms in taken.items()
    ]


def ours(artifact: Path, folder: Path, tokens: Any, items: Any) -> dict[str, Callable[[], float]]:
    """Our ways, over a pool that has the user, and for one of them the items."""
    kv_type = load_layout(Settings(artifact, artifact), SHAPE).kv_type
    layout = EntryLayout(SHAPE, SHAPE.levels, kv_type, SHAPE.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), SHAPE, kv_type, Settings(artifact, artifact))
    head = RankerHead.load(artifact / "onnx" / HEAD, SHAPE)
    request = RankRequest(1, tokens, items, items)
    arms = {}
    for name, (order, items_there) in WAYS.items():
        Pool.create(folder / name, 256 << 20, 1000 if items_there else 0, layout.item_bytes)
        executor = RankExecutor(passes, head, layout, "m", Pool(folder / name), "user")
        plan = RankPlan(order, True, True)
        executor.scores(request, plan)
        arms[name] = lambda executor=executor, plan=plan: timed(lambda: executor.scores(request, plan))[0]
    return arms


def peer_of(name: str, artifact: Path, asked: argparse.Namespace, span: int) -> Peer:
    """A peer in its own environment."""
    kv_type = load_layout(Settings(artifact, artifact), SHAPE).kv_type
    options = {
        "model": str((asked.folder / "hugging_face").resolve()), "levels": SHAPE.levels, "prompt": span,
        "candidates": CANDIDATES, "threads": usable_cores(),
        "dtype": "bfloat16" if kv_type == "bf16" else "float32",
    }  # fmt: skip
    log = asked.folder / "logs" / f"{name}.log"
    return Peer(name, Worker(install(asked.envs, name), HERE / f"worker_{name}.py", options, log, 12 * GIB))


if __name__ == "__main__":
    main()
