"""Ours beside what people use today: the same machine, weights, prompts and beam widths, in turn.

    python -m perf.peers [--quick] [--peers openvino-genai,vllm] [--models 30m] [--beam-widths 128,512] [--prompts 256]

The first run makes an environment per peer with pip (about 6 GB, see perf/peers/envs.py), the models, and
their formats, under --folder; later runs reuse them. Three tokens per item; a prompt is whole items, so 256
tokens are 255. Requests are random items, never the same twice. Logs of the peers are in FOLDER/logs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from genrec.errors import InputError
from genrec.progress import counting
from genrec.settings import MAX_BEAM_WIDTH
from perf.kit import machine, report
from perf.peers import ratios
from perf.peers.cells import CONCURRENCY, Cell, measure
from perf.peers.folder import LONGEST, SHAPES, PeerModel
from perf.peers.ours import BEST, DRAFT, NAME, OURS, Ours
from perf.peers.peer import Peer
from perf.peers.refusal import Refusal
from perf.peers.same import agreement, score_difference
from perf.peers.system import Prompts, System
from perf.peers.table import PEERS, make_peer

# Ways of ours that answer a history otherwise than the peers do.
OTHERS = {"best10": BEST, "draft": DRAFT}
SAME_WIDTH = 8  # beams of the check that all compute the same


class Refused:
    """A peer that could not even be made; every cell says why."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self._reason = name, reason

    def start(self, width: int) -> None:
        """Raises Refusal."""
        raise Refusal(self._reason)

    def stop(self) -> None:
        """Nothing runs."""


@contextmanager
def systems(model: PeerModel, a: argparse.Namespace) -> Iterator[list[System]]:
    """Ours and the peers asked for, stopped on leaving."""
    with ExitStack() as stack:
        made: list[Any] = [Ours(model, a.cores, max(CONCURRENCY), name) for name in OURS]
        for name in a.peers:
            try:
                made.append(
                    make_peer(
                        name, model, a.folder, threads=a.cores, width=max(a.beam_widths), prompt=max(a.prompts)
                    )
                )  # fmt: skip
            except Refusal as error:
                made.append(Refused(name, error.reason))
        for system in made:
            stack.callback(system.stop)
        yield made


def same_weights(model: PeerModel, systems: Sequence[Any], prompt: int, width: int) -> dict[str, Any]:
    """Our scores (a server of `width`) and the peers' answers held against transformers, where it runs."""
    peers = {system.name: system for system in systems if isinstance(system, Peer)}
    teller = peers.pop("transformers", None)
    if not teller:
        return {}
    asked, found = Prompts.draw(model, prompt, 1, (0,)), {}
    try:
        found["score_difference"] = score_difference(systems[0], teller, asked, width)
    except Refusal as error:
        found["score_difference"] = str(error)
    found["agreement"] = {}
    for name, peer in peers.items():
        if not PEERS[name].constrained:
            try:
                found["agreement"] |= agreement(teller, [peer], asked, SAME_WIDTH)
            except Refusal as error:
                found["agreement"][name] = str(error)
    return found


def of_gemm_peak(
    cells: list[Cell], models: dict[str, PeerModel], gflops: float
) -> dict[str, dict[str, float]]:
    """Per cell of ours: operations of a phase (`work`) per second of Triton's compute time, over the GEMM rate."""
    found = {}
    for cell in cells:
        if cell.system == NAME and cell.compute_s("prefill") and cell.compute_s("decode"):
            cost = models[cell.model].work(cell.prompt, cell.width)
            found[f"{cell.model}, {cell.prompt} tokens, BW {cell.width}"] = {
                "prefill": cost.prefill_operations / cell.compute_s("prefill") / gflops / 1e9,
                "decode": cost.decode_operations / cell.compute_s("decode") / gflops / 1e9,
            }
    return found


def add_limits(
    found: dict[str, dict[str, Any]],
    models: dict[str, PeerModel],
    prompts: list[int],
    width: int,
    gflops: float,
) -> None:
    """The ratio that no system with these weights could pass here: every operation of a request at the GEMM rate."""
    for name, model in models.items():
        for prompt in prompts:
            cost = model.work(prompt, width)
            most = gflops * 1e9 / (cost.prefill_operations + cost.decode_operations)
            if one := found.get(f"{name}, {prompt} tokens"):
                one["limit"] = most / one["fastest_rate"]


def gemm_gflops() -> float:
    """What an OpenVINO matmul reaches here, in the arithmetic that our engines use."""
    rate = machine.openvino_gemm("bf16" if machine.has_bf16() else "f32", 5)
    assert rate  # OpenVINO is what serves
    return rate


def compare(a: argparse.Namespace) -> dict[str, Any]:
    """Measure and judge. Returns what the last line holds."""
    models = {name: PeerModel.make(name, a.folder / "models" / name, SHAPES[name]) for name in a.models}
    cells, same, gflops = measure_models(a, models)
    return claims(cells, models, a.beam_widths, gflops) | {"same_weights": same}


def measure_models(
    a: argparse.Namespace, models: dict[str, PeerModel]
) -> tuple[list[Cell], dict[str, Any], float]:
    """All cells, printed block by block; per model whether all compute the same; the best GEMM rate, GFLOP/s."""
    cells: list[Cell] = []
    same: dict[str, Any] = {}
    gemm = [gemm_gflops()]
    bar = counting("peers", len(a.models) * len(a.beam_widths) * len(a.prompts), "block", leave=False)
    for name, model in models.items():
        prompts = [length // model.config.levels * model.config.levels for length in a.prompts]
        bar.set_description(f"{name}: making the peers")
        with systems(model, a) as made:
            same[name] = same_weights(model, made, prompts[0], a.beam_widths[0])
            for width in a.beam_widths:  # a server of ours is for one beam width; and memory only grows
                for prompt in prompts:
                    title = f"{name}, {prompt}, BW {width}: "
                    cells += measure(
                        made, model, prompt, width, repeats=a.repeats, budget_s=a.budget_s, done=cells,
                        tell=lambda text, title=title: bar.set_description(title + text),
                    )  # fmt: skip
                    bar.update()
                    bar.write(ratios.table(cells[-len(made) :]), file=sys.stdout)
        gemm.append(gemm_gflops())
    bar.close()
    return cells, same, max(gemm)


def claims(
    cells: list[Cell], models: dict[str, PeerModel], widths: Sequence[int], gflops: float
) -> dict[str, Any]:
    """What the cells say of ours: ratios to the peers, shares of the GEMM rate, and the cells themselves."""
    peaks = of_gemm_peak(cells, models, gflops)
    largest = next(reversed(peaks.values()), {})
    by_width = {width: ratios.ratios(cells, width) for width in widths}
    whole = sorted({cell.prompt for cell in cells})
    for width, blocks in by_width.items():
        add_limits(blocks, models, whole, width, gflops)
    others = {
        name: {width: ratios.ratios(cells, width, system) for width in widths}
        for name, system in OTHERS.items()
    }
    ours = [cell.valid_rate() for cell in cells if cell.system in OURS and not cell.refusal]
    return {
        **{f"ratio_bw{width}": ratios.lowest(found) for width, found in by_width.items()},
        **{f"memory_ratio_bw{width}": ratios.highest_memory(found) for width, found in by_width.items()},
        **{
            f"{name}_{key}_bw{width}": worst(found)
            for name, of_width in others.items()
            for key, worst in (("ratio", ratios.lowest), ("memory_ratio", ratios.highest_memory))
            for width, found in of_width.items()
        },
        "valid_rate": min(ours, default=None),
        "prefill_of_gemm_peak": largest.get("prefill"),
        "decode_of_gemm_peak": largest.get("decode"),
        "of_gemm_peak": peaks,
        "gemm_gflops": gflops,
        "ratios": {str(width): found for width, found in by_width.items()},
        **{
            f"{name}_ratios": {str(width): found for width, found in of_width.items()}
            for name, of_width in others.items()
        },
        "cells": [ratios.as_json(cell) for cell in cells],
    }


def rate_spread(cells: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Least and most requests per second of our beam search over its turns; `cells` has those of all."""
    return {
        f"requests/s, {c['model']}, {c['prompt']} tokens, BW {c['beam_width']}, {at} at a time": rates[1:]
        for c in cells
        if c["system"] == NAME
        for at, rates in c.get("requests_per_s", {}).items()
        if isinstance(rates, list)
    }


def _names(a: argparse.Namespace, option: str, known: Iterable[str]) -> list[str]:
    names: list[str] = getattr(a, option).split(",")
    if unknown := sorted(set(names) - set(known)):
        raise InputError(option, f"names {', '.join(unknown)}", ", ".join(known))
    return names


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; --quick replaces what it is short for."""
    parser = report.arguments("peers", __doc__)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--beam-widths", default="32,128,512")
    parser.add_argument("--prompts", default="256,1024", help="tokens, cut to whole items")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which the systems take turns")
    parser.add_argument("--budget-s", type=float, default=25.0, help="for a system's first figures in a cell")
    parser.add_argument("--cores", type=int, default=2, help="of every system")
    parser.add_argument("--quick", action="store_true", help="30m, 256 tokens, 2 repeats, 15 s")
    parser.add_argument("--folder", type=Path, default=Path("artifacts/peers"))
    a = parser.parse_args(argv)
    levels = SHAPES["30m"].levels  # of all
    a.peers, a.models = _names(a, "peers", PEERS), _names(a, "models", SHAPES)
    a.beam_widths = sorted(report.numbers_of(a, "beam_widths", 1, MAX_BEAM_WIDTH))
    a.prompts = sorted(report.numbers_of(a, "prompts", levels, (LONGEST + 1) * levels - 1))
    if a.quick:
        a.models, a.prompts, a.repeats, a.budget_s = ["30m"], [256], 2, 15.0
    return a


def summary(found: dict[str, Any]) -> str:
    """The ratios, and how far ours are from what the GEMM rate allows, for people."""
    lines = [
        f"\nGEMM (OpenVINO) {found['gemm_gflops']:.0f} GFLOP/s; ours reaches of it, by Triton's compute times:"
    ]
    for cell, phases in found["of_gemm_peak"].items():
        lines.append(f"  {cell:30}" + "".join(f"  {phase} {share:.0%}" for phase, share in phases.items()))
    for name, same in found["same_weights"].items():
        lines.append(f"{name}, the same weights: {json.dumps(same)}")
    for width, blocks in found["ratios"].items():
        for block, one in blocks.items():
            memory = f", {one['memory']:.2f} x the memory of {one['smallest']}" if one["memory"] else ""
            lines.append(
                f"BW {width}, {block}: {one['rate']:.2f} x the requests/s of {one['fastest']}, "
                f"at the GEMM rate {one['limit']:.2f} x{memory}"
            )
            for name, system in OTHERS.items():
                if other := found[f"{name}_ratios"][width].get(block):
                    memory = f", {other['memory']:.2f} x the memory" if other["memory"] else ""
                    lines.append(f"  {system}: {other['rate']:.2f} x{memory}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables and, last, one JSON object."""
    a, most = arguments(argv), len(os.sched_getaffinity(0))
    if not 1 <= a.cores <= most:
        raise InputError("cores", f"is {a.cores}", f"1 to {most}")
    # Before the machine is looked at: its name has the cores that are used.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.cores])
    run = report.begin(a)
    found = compare(a)
    print(summary(found))
    run.publish(found, repeats=a.repeats, spread=rate_spread(found["cells"]))


if __name__ == "__main__":
    main()
