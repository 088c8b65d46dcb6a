"""A user's prefix is there, 100 candidates are not ranked yet: ours beside what people would use, the same weights.

    genrec bench rank_peers [--peers transformers,vllm] [--prompts 576,1536] [--rounds 15]

Transformers ranks them in one pass behind a copy of the cached prefix, items masked from each other, all at the same
positions, which gives the likelihood of the candidates' codes. vLLM takes a prompt per candidate and finds the prefix
in its cache. It computes all codes of each and tells one token behind them: it would tell the likelihood of the codes
only if it computed the prefix too. Ours by `likelihood` (`perf.rank.likelihood`) gives what transformers does: it
computes a code that candidates share once, and none that the catalogue leaves no choice of. Its scores are over the
catalogue's items, those of transformers over all codes.

Our ranker has one discriminant token per candidate. It reuses the user's KV and computes the candidates (`user`, and
`split` with items that are missing), or reuses both (`split`). `half the layers` is a ranker whose discriminant tokens
have the generator's last ones alone. `least_ms` is the roofline of ours: of the products and the attention that a way
cannot do without. Transformers predicts an item's last code and computes two tokens of it; our ranker computes three
and a discriminant one, so with the user's KV alone its limit is near what transformers takes.

vLLM caches blocks of 32 tokens. Prompts are whole blocks and whole items, so that its cache has all of the prefix, and
nothing of a candidate.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.indices import load_validity
from genrec.catalogue.load import load_catalogue
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
from perf.kit.mock import ITEMS
from perf.kit.turns import in_turns, quartiles, timed
from perf.kit.work import work
from perf.peers.envs import install
from perf.peers.folder import write_hugging_face
from perf.peers.peer import GIB, Deadline, Peer, Worker
from perf.peers.refusal import Refusal
from perf.peers.vllm_cpu import BLOCK
from perf.rank.likelihood import beams_scored, by_likelihood
from perf.rank.mock_ranker import SHAPE, mock_ranker
from perf.rank.operations import Ranked, operations

PEERS = ("transformers", "vllm")
CANDIDATES = 100
WHOLE = lcm(BLOCK, SHAPE.levels)  # tokens
LIMIT_S = 120.0
USER, SPLIT, BOTH = "ours, user first, user there", "ours, split, user there", "ours, split, both there"
WAYS = {  # the order, and whether items' KV is there
    "ours, nothing there": ("whole", False), USER: ("user", False), SPLIT: ("split", False), BOTH: ("split", True),
}  # fmt: skip
LIKELIHOOD = "ours, likelihood, user there"
HALF = ", half the layers"
HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.arguments("rank_peers", __doc__)
    parser.add_argument("--peers", default="transformers")
    parser.add_argument("--prompts", default="576,1536", help=f"tokens of the user, multiples of {WHOLE}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/rank-peers"))
    parser.add_argument("--envs", type=Path, default=Path("artifacts/peers/envs"))
    asked = parser.parse_args(arguments)
    if not set(asked.peers.split(",")) <= set(PEERS):
        raise InputError("peers", f"is {asked.peers!r}", ", ".join(PEERS))
    spans = report.numbers_of(asked, "prompts", WHOLE)
    if any(span % WHOLE for span in spans):
        limit = f"multiples of {WHOLE}: whole blocks of vLLM's cache, and whole items"
        raise InputError("prompts", f"is {asked.prompts!r}", limit)
    run = report.begin(asked)
    artifact, half = asked.folder / "artifact", asked.folder / "half-the-layers"
    mock_ranker(artifact, SHAPE.levels, items=ITEMS)
    mock_ranker(half, SHAPE.levels, layers=SHAPE.num_hidden_layers // 2, items=ITEMS)
    write_hugging_face(artifact, asked.folder / "hugging_face")
    cells = [row for span in spans for row in measure(artifact, half, asked, span)]
    has_bf16 = load_layout(Settings(artifact, artifact), SHAPE).kv_type == "bf16"
    roofline = machine.roofline()
    index = load_validity(artifact, SHAPE)
    for cell in cells:
        beams = beams_scored(index, rows_drawn(cell["prompt"], index.items))
        counted = least_operations(cell["system"], cell["prompt"], beams)
        cell["least_ms"] = 1e3 * roofline.seconds(counted, 0.0, has_bf16) if counted else None
    print(report.columns(["", "prompt", "ms", "least ms", "times"], [row(cell) for cell in cells]))
    claims = {
        claim: {name: least_ratio(cells, name, ways) for name in PEERS}
        for claim, ways in (
            ("over", (BOTH,)),
            ("over_user_there", (USER, SPLIT)),
            ("over_likelihood", (LIKELIHOOD,)),
        )
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


def least_operations(system: str, span: int, beams: Sequence[float]) -> float:
    """What one of our ways cannot do without, behind `span` tokens of a user; 0 for a peer. `beams` are those that the
    passes of `likelihood` score.
    """
    if system == LIKELIHOOD:
        return work(SHAPE, span, CANDIDATES, "f32", beams).decode_operations
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
    drawn = Drawn.behind(artifact, span)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        arms = ours(artifact, half, folder, drawn)
        for name in asked.peers.split(","):
            try:
                peer = peer_of(name, artifact, asked, span)
                stack.callback(peer.stop)
                peer.start(1)
                peer.ask(Deadline(LIMIT_S), do="prefix", tokens=drawn.tokens.tolist())
            except Refusal as error:
                print(f"{name}: {error.reason}")
                continue
            arms[peer.name] = lambda peer=peer: peer.ask(
                Deadline(LIMIT_S), do="rank", items=drawn.items.tolist()
            )[1]
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


def rows_drawn(span: int, items: int) -> NDArray[np.int32]:
    """Of a catalogue of so many items those that are ranked behind `span` tokens: int32[C]."""
    return np.random.default_rng(span).choice(items, CANDIDATES, replace=False).astype(np.int32)


class Drawn(NamedTuple):
    """A user's tokens int32[S], and of the candidates catalogue rows int32[C] and tokens int32[C, L]."""

    tokens: NDArray[np.int32]
    rows: NDArray[np.int32]
    items: NDArray[np.int32]

    @classmethod
    def behind(cls, artifact: Path, span: int) -> Drawn:
        """Candidates behind a user of `span` tokens."""
        catalogue = load_catalogue(artifact, SHAPE)
        rows = rows_drawn(span, len(catalogue))
        tokens = np.random.default_rng(span).integers(0, SHAPE.vocab_size, span).astype(np.int32)
        return cls(tokens, rows, (catalogue.codes[rows] + np.array(SHAPE.code_offsets)).astype(np.int32))


def ours(artifact: Path, half: Path, folder: Path, drawn: Drawn) -> dict[str, Callable[[], float]]:
    """Seconds of all our ways, over pools in `folder`."""
    arms, of_half = ranked(artifact, folder, drawn), ranked(half, folder / "half", drawn)
    likelihood = by_likelihood(artifact, folder / "likelihood", drawn.tokens, drawn.rows)
    assert len(likelihood().scores) == CANDIDATES
    few = {name + HALF: of_half[name] for name in (SPLIT, BOTH)}
    return {**arms, **few, LIKELIHOOD: lambda: timed(likelihood)[0]}


def ranked(artifact: Path, folder: Path, drawn: Drawn) -> dict[str, Callable[[], float]]:
    """Those of our ranker, over a pool that has the user, and for one of them the items."""
    kv_type = load_layout(Settings(artifact, artifact), SHAPE).kv_type
    layout = EntryLayout(SHAPE, SHAPE.levels, kv_type, SHAPE.levels)
    (passes,) = load_rankers(engine_of(artifact, "openvino"), SHAPE, kv_type, Settings(artifact, artifact))
    head = RankerHead.load(artifact / "onnx" / HEAD, SHAPE)
    request = RankRequest(1, drawn.tokens, drawn.items, drawn.items)
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
