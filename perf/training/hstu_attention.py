"""An HSTU layer, forward and backward: attention fused over ragged sequences beside the formula in plain torch.

    genrec bench hstu_attention [--lengths 512,1024,2048,3000] [--rounds 5] [--threads 0]

Both arms are the same layer with the same weights and the same tokens; the plain one pads to the longest sequence and
has scores, bias and mask of a batch in memory (`genrec/nn/hstu_plain.py`). A `full` batch is two sequences of the
length, a `ragged` one four: of the length, a half, a quarter and an eighth of it. Seconds are medians of rounds in
turns; memory is the kernel's peak over what was resident before one step, in a fresh process for every cell. Ratios are
plain over fused. `worst` are those least in our favour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from genrec.nn.hstu import HstuConfig, HstuLayer, Tokens
from genrec.nn.hstu_attention import hstu_attention
from genrec.nn.hstu_layout import Layout
from genrec.nn.hstu_plain import plain_attention
from perf.kit import report
from perf.kit.turns import extremes, in_turns, timed
from perf.parts.peak_memory import resident

ARMS = {"fused": hstu_attention, "plain": plain_attention}
SHAPES: dict[str, Callable[[int], list[int]]] = {
    "full": lambda length: [length, length],
    "ragged": lambda length: [length, length // 2, length // 4, length // 8],
}
SECONDS_APART = 3600


def causal_tokens(lengths: list[int]) -> Tokens:
    """Events of these sequences, each of which sees those before it; only what attention reads of them."""
    place = torch.cat([torch.arange(each) for each in lengths])
    layout = Layout.of(torch.tensor(lengths), place, place, SECONDS_APART * place)
    return Tokens(layout, torch.ones_like(place), place, place, place)


def step_of(arm: str, lengths: list[int], size: int, heads: int) -> Callable[[], torch.Tensor]:
    """One forward and backward of a layer; returns the gradient of its input [T, size]."""
    torch.manual_seed(0)
    config = HstuConfig(1, (1,), 0, max_history=max(lengths), hidden_size=size, heads=heads, dropout=0.0)
    layer, tokens = HstuLayer(config), causal_tokens(lengths)
    layer.attend = ARMS[arm]
    with torch.no_grad():
        for bias in (layer.position_bias, layer.time_bias):
            bias.normal_()
    x = torch.randn(sum(lengths), size, requires_grad=True)

    def step() -> torch.Tensor:
        x.grad = None
        layer.zero_grad()
        layer(x, tokens.layout, tokens.group).square().mean().backward()
        return x.grad

    return step


def peak_bytes(arm: str, lengths: list[int], size: int, heads: int, threads: int) -> int:
    """Peak of resident memory of one step over what was resident before it; once per process."""
    torch.set_num_threads(threads)
    step_of(arm, [8, 3], size, heads)()  # libraries and threads are there
    step = step_of(arm, lengths, size, heads)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def peak_of(*asked: Any) -> int:
    """`peak_bytes` in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(peak_bytes, *asked).result()


def measure(shape: str, length: int, a: argparse.Namespace, threads: int) -> dict[str, Any]:
    """A cell: seconds, MB and both ratios. Ends the benchmark where the arms' gradients differ."""
    lengths = SHAPES[shape](length)
    steps = {arm: step_of(arm, lengths, a.size, a.heads) for arm in ARMS}
    ours, wanted = (step() for step in steps.values())
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    seconds = in_turns(
        {arm: partial(lambda step: timed(step)[0], step) for arm, step in steps.items()}, a.rounds
    )
    peaks = {arm: peak_of(arm, lengths, a.size, a.heads, threads) for arm in ARMS}
    middle = {arm: extremes(each) for arm, each in seconds.items()}
    return {
        "batch": shape, "length": length, "tokens": sum(lengths),
        **{f"{arm}_ms": round(1000 * each.median, 1) for arm, each in middle.items()},
        **{f"{arm}_mb": round(each / 1e6, 1) for arm, each in peaks.items()},
        "time_ratio": round(middle["plain"].median / middle["fused"].median, 2),
        "memory_ratio": round(peaks["plain"] / max(peaks["fused"], 1), 2),
        "spread": [min(seconds["plain"]) / max(seconds["fused"]), max(seconds["plain"]) / min(seconds["fused"])],
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table and, last, one JSON object."""
    parser = report.arguments("hstu_attention", __doc__)
    report.add_options(parser, rounds=5, threads=0)
    parser.add_argument("--lengths", default="512,1024,2048,3000", help="of the longest sequence of a batch")
    parser.add_argument("--size", type=int, default=128, help="of a token")
    parser.add_argument("--heads", type=int, default=2)
    a = parser.parse_args(argv)
    lengths = report.numbers_of(a, "lengths")
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    threads = torch.get_num_threads()
    cells = [measure(shape, length, a, threads) for length in lengths for shape in SHAPES]
    shown = [name for name in cells[0] if name != "spread"]
    print("\n" + report.columns(shown, [[cell[name] for name in shown] for cell in cells]))
    worst = {f"{name}_worst": min(cell[name] for cell in cells) for name in ("time_ratio", "memory_ratio")}
    spread = {f"{cell['batch']} {cell['length']}, time ratio": cell.pop("spread") for cell in cells}
    run.publish({**worst, "cells": cells}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
