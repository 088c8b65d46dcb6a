"""What the validity constraint costs: time of a beam search step and memory, at a million items.

    genrec bench constraint [--items 1000000] [--repeats 30] [--artifact artifacts/mock]

Codes are drawn uniformly and logits are normal with deviation 3, both seeded. The share of a decode step is that of
the slowest level's whole search step, selection included, in one pass of `--artifact` at beam width 512: by default the
31 M generator of perf.kit.mock, which is made when it is not there. `unconstrained` is a step that reads every code of
every beam, softmax and selection alike: what there would be without a constraint. All of them take turns: so each finds
the caches as others leave them, and a slow minute hits all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Engine
from genrec.engine.load import load_layout, load_passes
from genrec.kv.arena import Row
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, expand
from genrec.search.lookup import lookup
from genrec.search.scratch import Scratch
from genrec.search.select import threshold
from genrec.settings import Settings
from perf.kit import report, turns
from perf.kit.mock import mock_artifact

LEVELS, SIZES, WIDTHS, EXCLUDED, TOP_K = 3, (256, 8192), (128, 512), 100, 50
DECODE = "decode_us"


Call = Callable[[], object]


def timings(calls: Mapping[str, Call], repeats: int) -> dict[str, dict[str, float]]:
    """Median and quartiles of every call in microseconds; they take turns."""
    arms = {name: partial(lambda call: turns.timed(call)[0], call) for name, call in calls.items()}
    taken = turns.in_turns(arms, repeats, warm_ups=1, label="steps")
    found = {name: (1e6 * each for each in turns.quartiles(seconds)) for name, seconds in taken.items()}
    return {
        name: {"median": round(middle, 1), "q25": round(low, 1), "q75": round(high, 1)}
        for name, (middle, low, high) in found.items()
    }


def steps_of(size: int, items: int) -> tuple[dict[str, float], dict[str, Call]]:
    """Memory in MB per million items, and the steps by name, for codebooks of one size."""
    rng = np.random.default_rng(0)
    item_ids = np.arange(items, dtype=np.int64)
    codes = rng.integers(0, size, (items, LEVELS), np.int32)
    index = ValidityIndex.build(codes, (size,) * LEVELS, rng.integers(0, 1000, items), item_ids)
    known = SemanticIdSet.build(index.paths(LEVELS))
    memory = {f"T{size} index": index.nbytes / items, f"T{size} hash set": known.nbytes / items}
    excluded = rng.integers(0, items, EXCLUDED)
    blocked = index.blocked(excluded)
    alone = np.array([THESE_ALONE, *excluded])
    steps: dict[str, Call] = {
        f"T{size} blocked({EXCLUDED} rows)": lambda: index.blocked(excluded),
        f"T{size} blocked(all but {EXCLUDED} rows)": lambda: index.blocked(alone),
    }
    for width in WIDTHS:
        beams = None
        for level in range(1, LEVELS + 1):
            rows = 1 if beams is None else len(beams)
            logits = 3 * rng.standard_normal((rows, size), np.float32)

            def step(level=level, logits=logits, beams=beams, width=width) -> Beams:
                return expand(Constraint(index, blocked), level, logits, beams, width)

            steps[f"T{size} BW{width} level {level}"] = step
            beams = step()
        ids, scores = beams.paths, beams.scores
        steps[f"T{size} BW{width} lookup top {TOP_K}"] = partial(
            lookup, index, known, item_ids, ids, scores, TOP_K, excluded
        )
        steps[f"T{size} BW{width} unconstrained"] = unconstrained(size, width)
    return memory, steps


def unconstrained(size: int, width: int) -> Call:
    """Softmax over all codes of `width` beams, and finding the `width`-th best sum."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((width, size), np.float32)
    beams = rng.standard_normal((width, 1), np.float32)
    scores, work = np.empty_like(logits), Scratch()
    work.fit(width, logits.size)

    def step() -> tuple[float, int]:
        top = logits.max(axis=1, keepdims=True)
        np.exp(np.subtract(logits, top, out=scores), out=scores)
        shift = beams - top - np.log(scores.sum(axis=1, keepdims=True))
        np.add(logits, shift, out=scores)
        return threshold(scores.reshape(-1), logits.size, width, work.keys, work.histogram)

    return step


def decode_pass(artifact: Path, width: int) -> Call:
    """The last decode pass over the longest prompt, on all cores."""
    config = load_config(artifact)
    layout = load_layout(Settings(artifact, artifact, width), config)
    (passes,) = load_passes("openvino", engine_of(artifact, "openvino"), layout.kv_type)
    memory = np.zeros(layout.slot_bytes, np.uint8)
    row = Row(memory, 1, config.max_prompt, 0)
    codes, engine = np.zeros(width, np.int64), Engine(layout, passes)
    return lambda: engine.decode(config.levels, codes, config.max_prompt, row)


def shares(steps: dict[str, dict[str, float]], decode_us: float) -> tuple[float, float]:
    """Of a decode pass: the slowest level's whole search step, and what it takes beyond an unconstrained one."""
    widest, step, added = WIDTHS[-1], 0.0, 0.0
    for size in SIZES:
        slowest = max(steps[f"T{size} BW{widest} level {n}"]["median"] for n in range(1, LEVELS + 1))
        whole = slowest + steps[f"T{size} blocked({EXCLUDED} rows)"]["median"]
        step = max(step, whole)
        added = max(added, whole - steps[f"T{size} BW{widest} unconstrained"]["median"])
    return step / decode_us, added / decode_us


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, last, one JSON object."""
    parser = report.arguments("constraint", __doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/mock"))
    a = parser.parse_args(argv)
    run = report.begin(a)
    if not a.artifact.exists():
        mock_artifact(a.artifact)
    memory: dict[str, float] = {}
    calls: dict[str, Call] = {DECODE: decode_pass(a.artifact, WIDTHS[-1])}
    for size in SIZES:
        more_memory, more_calls = steps_of(size, a.items)
        memory |= more_memory
        calls |= more_calls
    steps = timings(calls, a.repeats)
    decode = steps.pop(DECODE)
    step, added = shares(steps, decode["median"])
    print(f"\n{a.items} items, L={LEVELS}, {EXCLUDED} excluded rows, median of {a.repeats}\n")
    print(report.columns(("", "MB per million items"), [(n, f"{value:.1f}") for n, value in memory.items()]))
    rows = [(n, *(f"{value:.1f}" for value in us.values())) for n, us in steps.items()]
    print("\n" + report.columns(("", "us", "quartile", "quartile"), rows))
    print(f"a decode pass of {a.artifact.name}, BW {WIDTHS[-1]}: {decode['median'] / 1000:.1f} ms;"
          f" the search step is {step:.2%} of it, what the constraint adds {added:.2%}")  # fmt: skip
    run.publish(
        {
            "step_share_1m": step,
            "constraint_share_1m": added,
            # The index alone constrains; the hash set is what answers are looked up in.
            "mb_per_million": round(max(memory[f"T{size} index"] for size in SIZES), 2),
            "memory_mb_per_million": {name: round(value, 2) for name, value in memory.items()},
            "step_us": steps,
            "decode_us": decode,
        },
        repeats=a.repeats,
        spread={name: (us["q25"], us["q75"]) for name, us in {**steps, DECODE: decode}.items()},
    )


if __name__ == "__main__":
    main()
