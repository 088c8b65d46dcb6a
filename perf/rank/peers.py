"""A user's prefix is there, 100 candidates are not ranked yet: ours beside what people would use, the same weights.

    genrec bench rank_peers [--peers transformers,vllm] [--prompts 528,1488] [--rounds 15]

Transformers ranks them in one pass behind a copy of the cached prefix, items masked from each other, all at the same
positions; vLLM takes a prompt per candidate and finds the prefix in its cache. Both give the likelihood of the
candidates' codes, ours one discriminant token per candidate. Ours reuses the user's KV and computes the candidates
(`user`, and `split` with items that are missing), or reuses both (`split`). `half the layers` is a ranker whose
discriminant tokens have the generator's last ones alone.

vLLM caches blocks of 16 tokens. Prompts are whole blocks and whole items, so that its cache has all of the prefix and,
after the first round, nothing of a candidate.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genrec.engine.instructions import engine_of
from genrec.engine.load import load_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.kv.entries import EntryLayout
from genrec.pool.pool import Pool
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.settings import Settings
from perf.kit import report
from perf.kit.turns import extremes, in_turns, timed
from perf.peers.envs import install
from perf.peers.folder import write_hugging_face
from perf.peers.peer import GIB, Deadline, Peer, Worker
from perf.peers.refusal import Refusal
from perf.rank.mock_ranker import SHAPE, mock_ranker

CANDIDATES = 100
LIMIT_S = 120.0
SPLIT, BOTH = "ours, split, user there", "ours, split, both there"
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
    run = report.begin(asked)
    artifact, half = asked.folder / "artifact", asked.folder / "half-the-layers"
    mock_ranker(artifact, SHAPE.levels)
    mock_ranker(half, SHAPE.levels, layers=SHAPE.num_hidden_layers // 2)
    write_hugging_face(artifact, asked.folder / "hugging_face")
    cells = [row for span in asked.prompts.split(",") for row in measure(artifact, half, asked, int(span))]
    print(
        report.columns(
            ["", "prompt", "ms", "times"],
            [[c["system"], c["prompt"], f"{c['ms']:.1f}", f"{c['over_ours']:.1f}"] for c in cells],
        )
    )
    worst = {
        name: min(c["over_ours"] for c in cells if c["system"] == name)
        for name in asked.peers.split(",") if any(c["system"] == name for c in cells)
    }  # fmt: skip
    run.publish({"over": worst, "cells": cells}, repeats=asked.rounds)


def measure(artifact: Path, half: Path, asked: argparse.Namespace, span: int) -> list[dict[str, Any]]:
    """Milliseconds of every way at one length of prompt; `over_ours` is over `split` with both entries.

    `half` has a ranker of half the layers.
    """
    draw = np.random.default_rng(span)
    tokens = draw.integers(0, SHAPE.vocab_size, span // SHAPE.levels * SHAPE.levels).astype(np.int32)
    items = draw.integers(0, SHAPE.vocab_size, (CANDIDATES, SHAPE.levels)).astype(np.int32)
    peers = [peer_of(name, artifact, asked, span) for name in asked.peers.split(",")]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        arms = ours(artifact, Path(folder), tokens, items)
        of_half = ours(half, Path(folder) / "half", tokens, items)
        arms |= {f"{name}, half the layers": of_half[name] for name in (SPLIT, BOTH)}
        for peer in peers:
            try:
                peer.start(1)
                peer.ask(Deadline(LIMIT_S), do="prefix", tokens=tokens.tolist())
            except Refusal as error:
                print(f"{peer.name}: {error.reason}")
                continue
            arms[peer.name] = lambda peer=peer: peer.ask(Deadline(LIMIT_S), do="rank", items=items.tolist())[
                1
            ]
        try:
            given = in_turns(arms, asked.rounds, warm_ups=2, label=f"{span} tokens")
        finally:
            for peer in peers:
                peer.stop()
    best = extremes(given[BOTH]).median
    return [
        {
            "system": name,
            "prompt": span,
            "ms": 1e3 * extremes(seconds).median,
            "over_ours": extremes(seconds).median / best,
        }
        for name, seconds in given.items()
    ]


def ours(artifact: Path, folder: Path, tokens: Any, items: Any) -> dict[str, Callable[[], float]]:
    """Our ways, over a pool that has the user, and for one of them the items."""
    kv_type = load_layout(Settings(artifact, artifact), SHAPE).kv_type
    layout = EntryLayout(SHAPE, SHAPE.levels, kv_type, SHAPE.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), SHAPE, kv_type, 0, 1)
    head = RankerHead.load(artifact / "onnx" / HEAD, SHAPE)
    request = RankRequest(1, tokens, items, items)
    arms = {}
    for name, order, rows in (
        ("ours, nothing there", "whole", 0), ("ours, user first, user there", "user", 0),
        (SPLIT, "split", 0), (BOTH, "split", 1000),
    ):  # fmt: skip
        Pool.create(folder / name, 256 << 20, rows, layout.item_bytes)
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
        "candidates": CANDIDATES, "threads": len(os.sched_getaffinity(0)),
        "dtype": "bfloat16" if kv_type == "bf16" else "float32",
    }  # fmt: skip
    log = asked.folder / "logs" / f"{name}.log"
    return Peer(name, Worker(install(asked.envs, name), HERE / f"worker_{name}.py", options, log, 12 * GIB))


if __name__ == "__main__":
    main()
