"""What the validity constraint costs: time of a beam search step and memory, at a million items.

    genrec bench constraint [--items 1000000] [--repeats 30] [--artifact artifacts/mock]

Codes are drawn uniformly and logits are normal with deviation 3, both seeded. The share of a decode step is that of
the slowest level's whole search step, selection included, in one pass of `--artifact` at beam width 512: by default the
31 M generator of perf.kit.mock, which is made when it is not there. `unconstrained` is a step that reads every code of
every beam, softmax and selection alike: what there would be without a constraint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.interface import Engine
from genrec.engine.load import load_layout, load_passes
from genrec.kv.arena import Row
from genrec.search.expand import Beams, expand
from genrec.search.lookup import lookup
from genrec.search.select import threshold
from genrec.search.workspace import Workspace
from genrec.settings import Settings
from perf.kit.machine import facts
from perf.kit.mock import mock_artifact

LEVELS, SIZES, WIDTHS, EXCLUDED, TOP_K = 3, (256, 8192), (128, 512), 100, 50


def timed(call, repeats: int) -> dict[str, float]:
    """Median and quartiles of a call in microseconds; the first call warms up and is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = perf_counter()
        call()
        taken.append((perf_counter() - begin) * 1e6)
    low, high = np.quantile(taken, (0.25, 0.75))
    return {"median": round(median(taken), 1), "q25": round(low, 1), "q75": round(high, 1)}


def measure(size: int, items: int, repeats: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Memory in MB per million items, and microseconds by name of step, for codebooks of one size."""
    rng = np.random.default_rng(0)
    item_ids = np.arange(items, dtype=np.int64)
    codes = rng.integers(0, size, (items, LEVELS), np.int32)
    index = ValidityIndex.build(codes, (size,) * LEVELS, rng.integers(0, 1000, items), item_ids)
    known = SemanticIdSet.build(index.paths(LEVELS))
    memory = {f"T{size} index": index.nbytes / items, f"T{size} hash set": known.nbytes / items}
    excluded = rng.integers(0, items, EXCLUDED)
    blocked = index.blocked(excluded)
    steps = {f"T{size} blocked({EXCLUDED} rows)": timed(lambda: index.blocked(excluded), repeats)}
    for width in WIDTHS:
        work, beams = Workspace(), None
        for level in range(1, LEVELS + 1):
            rows = 1 if beams is None else len(beams)
            logits = 3 * rng.standard_normal((rows, size), np.float32)

            def step(level=level, logits=logits, beams=beams, width=width, work=work) -> Beams:
                return expand(index, level, logits, beams, width, blocked, work)

            steps[f"T{size} BW{width} level {level}"] = timed(step, repeats)
            beams = step()
        ids, scores = beams.paths, beams.scores
        answer = timed(lambda i=ids, s=scores: lookup(index, known, item_ids, i, s, TOP_K, excluded), repeats)
        steps[f"T{size} BW{width} lookup top {TOP_K}"] = answer
    return memory, steps


def unconstrained(size: int, width: int, repeats: int) -> dict[str, float]:
    """Microseconds of softmax over all codes of `width` beams and of finding the `width`-th best sum."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((width, size), np.float32)
    beams = rng.standard_normal((width, 1), np.float32)
    scores, work = np.empty_like(logits), Workspace()
    work.fit(width, logits.size)

    def step() -> tuple[float, int]:
        top = logits.max(axis=1, keepdims=True)
        np.exp(np.subtract(logits, top, out=scores), out=scores)
        shift = beams - top - np.log(scores.sum(axis=1, keepdims=True))
        np.add(logits, shift, out=scores)
        return threshold(scores.reshape(-1), logits.size, width, work.keys, work.histogram)

    return timed(step, repeats)


def decode_us(artifact: Path, width: int, repeats: int) -> dict[str, float]:
    """Microseconds of the last decode pass over the longest prompt, on all cores."""
    config = load_config(artifact)
    layout = load_layout(Settings(artifact, artifact, width), config)
    (passes,) = load_passes("openvino", artifact / "engines" / "openvino", layout.kv_type)
    memory = np.zeros(layout.slot_bytes, np.uint8)
    row = Row(memory, 1, config.max_prompt, 0)
    codes, engine = np.zeros(width, np.int64), Engine(layout, passes)
    return timed(lambda: engine.decode(config.levels, codes, config.max_prompt, row), repeats)


def main() -> None:
    """Print the table and, last, one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock"))
    asked = parser.parse_args()
    where, memory, steps = facts(), {}, {}
    print(", ".join(f"{key}: {value}" for key, value in where.items()))
    print(f"{asked.items} items, L={LEVELS}, {EXCLUDED} excluded rows, median of {asked.repeats}\n")
    if not asked.artifact.exists():
        mock_artifact(asked.artifact)
    for size in SIZES:
        more_memory, more_steps = measure(size, asked.items, asked.repeats)
        memory.update(more_memory)
        steps.update(more_steps)
        steps |= {
            f"T{size} BW{width} unconstrained": unconstrained(size, width, asked.repeats) for width in WIDTHS
        }
    for name, value in memory.items():
        print(f"{name:28} {value:9.1f} MB per million items")
    for name, value in steps.items():
        print(f"{name:28} {value['median']:9.1f} us   (quartiles {value['q25']} to {value['q75']})")
    decode, widest = decode_us(asked.artifact, WIDTHS[-1], asked.repeats), WIDTHS[-1]
    step, added = 0.0, 0.0  # the whole step; what it takes beyond an unconstrained one
    for size in SIZES:
        slowest = max(steps[f"T{size} BW{widest} level {n}"]["median"] for n in range(1, LEVELS + 1))
        whole = slowest + steps[f"T{size} blocked({EXCLUDED} rows)"]["median"]
        step = max(step, whole)
        added = max(added, whole - steps[f"T{size} BW{widest} unconstrained"]["median"])
    print(f"a decode pass of {asked.artifact.name}, BW {widest}: {decode['median'] / 1000:.1f} ms;"
          f" the search step is {step / decode['median']:.2%} of it,"
          f" what the constraint adds {added / decode['median']:.2%}")  # fmt: skip
    settings = {"items": asked.items, "levels": LEVELS, "excluded": EXCLUDED, "repeats": asked.repeats}
    figures = {
        "step_share_1m": step / decode["median"],
        "constraint_share_1m": added / decode["median"],
        # The index alone constrains; the hash set is what answers are looked up in.
        "mb_per_million": round(max(memory[f"T{size} index"] for size in SIZES), 2),
        "memory_mb_per_million": {name: round(value, 2) for name, value in memory.items()},
        "step_us": steps,
        "decode_us": decode,
    }
    print(json.dumps({"benchmark": "constraint", **figures, "settings": settings, "machine": where}))


if __name__ == "__main__":
    main()
