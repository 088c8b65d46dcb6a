"""What a decode pass need not score: the same requests with all beams scored, and with those that can matter.

    genrec bench passes artifacts/ml-1m [--beam-widths 32,128,512] [--top-k 10,50] [--requests 150] [--rounds 3]

In one process, one request at a time, ways in turn; real histories where the artifact has some. `all beams` is beam
search as it is written down. The others leave out beams that are items already (`genrec.search.undecided`) and those
that cannot matter to the best K of the answer (`genrec.search.bound`), W of them or fewer. `beams` is how many a
request had scored, padding included. Every answer is compared with that of all beams: `same` counts equal lists of
the best K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, DecodePass, Passes
from genrec.engine.load import load_layout, load_passes
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, ranked
from genrec.settings import Settings
from perf.kit import report, traffic, turns

ALL = "all beams"


class Counted:
    """Passes that count the beams they score."""

    def __init__(self, passes: Passes) -> None:
        self._passes, self.beams = passes, 0
        self.prefill, self.draft_states = passes.prefill, passes.draft_states

    def decode(self, given: DecodePass) -> Array:
        """See `Passes.decode`."""
        self.beams += given.codes.size
        return self._passes.decode(given)


@dataclass
class Seen:
    """Of every request: milliseconds, beams scored, whether the best K were those of all beams, largest difference of
    a score.
    """  # fmt: skip

    ms: list[float] = field(default_factory=list)
    beams: list[int] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Medians and the like."""
        return {
            "p50_ms": median(self.ms), "p99_ms": float(np.quantile(self.ms, 0.99)), "beams": fmean(self.beams),
            "same": sum(self.same), "requests": len(self.same), "score_difference": max(self.apart),
        }  # fmt: skip


def measure(artifact: Path, width: int, top_k: list[int], requests: int, rounds: int) -> dict[str, Seen]:
    """Way -> what was seen, of one beam width; the first round is not counted."""
    config, index = load_config(artifact), load_validity(artifact, load_config(artifact))
    kv_type = load_layout(Settings(artifact, artifact, width), config).kv_type
    passes = Counted(load_passes("openvino", engine_of(artifact, "openvino"), kv_type)[0])
    free = index.blocked(np.array([-1], np.int32))
    wanted = {ALL: width, **{f"best {k}": k for k in sorted({*top_k, width}) if k <= width}}
    generators = {way: HostExecutor(passes, config, width, kv_type) for way in wanted}
    seen: dict[str, Seen] = {way: Seen() for way in wanted}
    asked, answers = traffic.prompts(artifact, requests, 0), dict[str, Beams]()
    for number, way in turns.interleaved([*wanted], len(asked) * (rounds + 1), f"BW {width}"):
        tokens, lengths = asked[number % len(asked)]
        constraint, passes.beams = Constraint(index, free, wanted[way]), 0
        ask = partial(generators[way].answers, tokens, lengths, [constraint], way == ALL)
        seconds, (answers[way],) = turns.timed(ask)
        if number >= len(asked):
            seen[way].ms.append(1000 * seconds)
            seen[way].beams.append(passes.beams)
        if len(answers) == len(wanted):  # all have seen this prompt
            for each, found in answers.items():
                if number >= len(asked):
                    _compare(seen[each], found, answers[ALL], wanted[each])
            answers.clear()
    return seen


def _compare(seen: Seen, found: Beams, whole: Beams, count: int) -> None:
    mine, other = ranked(found)[:count], ranked(whole)[:count]
    seen.same.append(np.array_equal(found.paths[mine], whole.paths[other]))
    seen.apart.append(float(np.abs(found.scores[mine] - whole.scores[other]).max()))


def table(figures: dict[str, dict[str, Any]]) -> str:
    """A line per way."""
    rows = [
        (
            way,
            f"{f['p50_ms']:.2f}",
            f"{f['p99_ms']:.2f}",
            f"{f['beams']:.0f}",
            f"{f['same']} / {f['requests']}",
        )
        for way, f in figures.items()
    ]
    return report.columns(("", "P50 ms", "P99 ms", "beams", "same"), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per beam width and, last, one JSON object."""
    parser = report.arguments("passes", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-widths", default="32,128,512")
    parser.add_argument("--top-k", default="10,50")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args(argv)
    widths, top_k = (report.numbers_of(a, name) for name in ("beam_widths", "top_k"))
    run = report.begin(a)
    found, spread = {}, {}
    for width in widths:
        seen = measure(a.artifact, width, top_k, a.requests, a.rounds)
        found[str(width)] = {way: each.figures() for way, each in seen.items()}
        spread |= {f"ms, BW {width}, {way}": turns.quartiles(each.ms)[1:] for way, each in seen.items()}
        print(f"\nbeam width {width}\n{table(found[str(width)])}")
    run.publish(found, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
