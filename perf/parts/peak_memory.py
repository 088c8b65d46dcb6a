"""Peak memory of one request, ours beside a copy of the prompt's KV per beam: Figures 15 and 16 of the xGR paper.

    genrec bench memory [--beam-widths 128,256,512,1024] [--prompts 256,1024,3000] [--repeats 3] [--plot FILE]

Every cell is a fresh process with one OpenVINO thread: the engine is loaded and its graphs compiled, then what one
request takes on top is the kernel's peak of resident memory; every beam is scored, as in the densest catalogue. `per
beam` is the same decode graph asked for W requests of one beam each, with the prompt's KV expanded to W copies: what a
cache without sharing holds, and a paged one where no block is shared. What does not fit in half of the free memory is
not run; its KV by arithmetic is a lower bound.
What lies above the KV is the engine's own: activations, and where attention is not one operation
(build/openvino/attention.py) scores of W x H x S, which OpenVINO writes out. The model is the 31 M generator of
perf.kit.mock with a longer prompt, made when `--artifact` is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Passes
from genrec.engine.load import load_layout, load_passes
from genrec.errors import InputError
from genrec.models.config import ModelConfig
from genrec.search.constraint import Constraint
from genrec.settings import Settings
from perf.kit import report, turns
from perf.kit.machine import memory_limit
from perf.kit.mock import SHAPE, mock_artifact
from perf.kit.work import work
from perf.parts.memory_plot import plot_memory
from perf.parts.per_beam import PerBeam

MAX_HISTORY, THREADS = 1000, 1


class KvBytes(NamedTuple):
    """KV of one request by arithmetic, at its peak: while the last decode pass runs."""

    shared: int  # S tokens, once
    unshared: int  # W x (L - 1) tokens; those of the last pass live only in it
    copies: int  # W x S tokens

    @property
    def ours(self) -> int:
        """Staged attention: one copy of the prompt."""
        return self.shared + self.unshared

    @property
    def per_beam(self) -> int:
        """A copy of the prompt for every beam."""
        return self.copies + self.unshared


def kv_bytes(config: ModelConfig, prompt: int, width: int, kv_type: str) -> KvBytes:
    """Of S = `prompt` tokens and W = `width` beams."""
    token = work(config, 1, 1, kv_type).kv_shared_bytes
    return KvBytes(prompt * token, width * (config.levels - 1) * token, width * prompt * token)


WAYS: dict[str, Callable[[Passes], Passes]] = {"ours": lambda passes: passes, "per beam": PerBeam}


def peak_bytes(artifact: Path, prompt: int, width: int, way: str) -> int:
    """Peak of resident memory over that of the loaded engine, of one request in this process; once per process."""
    config = load_config(artifact)
    kv_type = load_layout(Settings(artifact, artifact, width), config).kv_type
    index = load_validity(artifact, config)
    free = Constraint(index, index.blocked(np.array([-1], np.int32)))
    (passes,) = load_passes("openvino", engine_of(artifact, "openvino"), kv_type, THREADS)
    # A graph compiles when it is first used.
    HostExecutor(passes, config, 1, kv_type).answers(
        np.zeros((1, 1), np.int64), np.ones(1, np.int64), [free], every_beam=True
    )
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (1, prompt))
    generator = HostExecutor(WAYS[way](passes), config, width, kv_type)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident now
    loaded = resident("VmRSS")
    generator.answers(tokens, np.array([prompt]), [free], every_beam=True)
    return resident("VmHWM") - loaded


def resident(field: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (peak) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(artifact: Path, prompt: int, width: int, way: str) -> int:
    """`peak_bytes` in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(peak_bytes, artifact, prompt, width, way).result()


def as_cell(prompt: int, width: int, kv: KvBytes, peaks: dict[str, list[int]]) -> dict[str, Any]:
    """MB of both ways; `ratio` is per beam over ours, a lower bound where per beam was not run, None over 0 MB."""
    measured = {way: round(median(each) / 1e6, 1) for way, each in peaks.items()}
    other, mine = measured.get("per beam", kv.per_beam / 1e6), measured["ours"]
    return {
        "prompt": prompt,
        "beam_width": width,
        "ours_mb": mine,
        "ours_kv_mb": round(kv.ours / 1e6, 1),
        "per_beam_mb": measured.get("per beam"),
        "per_beam_kv_mb": round(kv.per_beam / 1e6, 1),
        "ratio": round(other / mine, 2) if mine else None,
        "spread_mb": {way: round((max(each) - min(each)) / 1e6, 1) for way, each in peaks.items()},
    }


def table(cells: list[dict[str, Any]]) -> str:
    """A line per cell."""
    rows = []
    for c in cells:
        run = c["per_beam_mb"] is not None
        other = f"{c['per_beam_mb']:.1f}" if run else f"not run: needs {c['per_beam_kv_mb'] / 1000:.1f} GB"
        ratio = "-" if c["ratio"] is None else f"{'' if run else '>= '}{c['ratio']:.1f}"
        mine = c["prompt"], c["beam_width"], f"{c['ours_mb']:.1f}", f"{c['ours_kv_mb']:.1f}"
        rows.append((*mine, other, f"{c['per_beam_kv_mb']:.1f}", ratio))
    head = ("S", "BW", "ours MB", "of it KV", "per beam MB", "of it KV", "ratio")
    return report.columns(head, rows)


def flat_in_bw(cells: list[dict[str, Any]]) -> float | None:
    """Ours at the widest beam over ours at the narrowest, at the longest prompt; None over 0 MB."""
    longest = max(cell["prompt"] for cell in cells)
    mine = {cell["beam_width"]: cell["ours_mb"] for cell in cells if cell["prompt"] == longest}
    return round(mine[max(mine)] / mine[min(mine)], 2) if mine[min(mine)] else None


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, last, one JSON object."""
    parser = report.arguments("memory", __doc__)
    parser.add_argument("--beam-widths", default="128,256,512,1024")
    parser.add_argument("--prompts", default="256,1024,3000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock-3000"))
    parser.add_argument("--plot", type=Path, metavar="FILE")
    a = parser.parse_args(argv)
    prompts, widths = (report.numbers_of(a, name) for name in ("prompts", "beam_widths"))
    is_there = a.artifact.exists()
    config = load_config(a.artifact) if is_there else replace(SHAPE, max_history=MAX_HISTORY)
    if max(prompts) > config.max_prompt:
        problem = f"holds {max(prompts)}, more tokens than {a.artifact.name} reads"
        raise InputError("prompts", problem, f"at most {config.max_prompt}")
    run = report.begin(a)
    if not is_there:
        mock_artifact(a.artifact, config, draft=False)
    kv_type = load_layout(Settings(a.artifact, a.artifact), config).kv_type
    shapes = {shape: kv_bytes(config, *shape, kv_type) for shape in product(prompts, widths)}
    limit = memory_limit()
    arms = {
        (shape, way): partial(measure, a.artifact, *shape, way)
        for shape, kv in shapes.items()
        for way in WAYS
        if way == "ours" or kv.per_beam <= limit
    }
    peaks = turns.in_turns(arms, a.repeats, label="cells")
    cells = [
        as_cell(*shape, kv, {way: each for (of, way), each in peaks.items() if of == shape})
        for shape, kv in shapes.items()
    ]
    print(
        f"\npeak over the loaded engine, median of {a.repeats}; KV in {kv_type}, at most {limit / 1e9:.1f} GB"
    )
    print(table(cells))
    if a.plot:
        plot_memory(cells, a.plot)
    flat = flat_in_bw(cells)
    print(f"\nours at BW {max(widths)} over ours at BW {min(widths)}, S {max(prompts)}: {flat}")
    run.publish(
        {"flat_in_bw": flat, "cells": cells, "threads": THREADS, "kv_type": kv_type},
        repeats=a.repeats,
        spread={
            f"S {p}, BW {w}, {way}, MB": (min(mb) / 1e6, max(mb) / 1e6) for ((p, w), way), mb in peaks.items()
        },
    )


if __name__ == "__main__":
    main()
