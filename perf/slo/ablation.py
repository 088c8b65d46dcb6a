"""What each part of the scheduling is worth (xGR, figure 18): the same requests to servers that differ by one part.

    genrec bench ablation artifacts/ml-100k

A model of Triton for every pass; all passes in one process; batches by tokens; several streams. Servers run one at a
time, in rounds that turn the order around. Capacity is what 16 requests in flight get answered per second; P50 is of
one request at a time. Load generator and server share the machine's cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from genrec.draft.load import has_draft
from perf.kit import endpoints, report, traffic, turns
from perf.slo.capacity import capacity

IN_FLIGHT = 16


@dataclass(frozen=True)
class ServedArm:
    """One way to serve: an ensemble and the launcher's options."""

    name: str
    ensemble: str = "recommend"
    options: dict[str, Any] = field(default_factory=dict)


ARMS = (
    ServedArm("a model for every pass", "recommend_staged"),
    ServedArm("one process", options={"streams": 1, "batch_tokens": 1}),
    ServedArm("+ batches by tokens", options={"streams": 1}),
    ServedArm("+ two streams", options={"streams": 2}),
    ServedArm("drafts instead of decode passes", "recommend_draft"),
)


def measure(
    arm: ServedArm, artifact: Path, sample: traffic.Histories, width: int, seconds: float
) -> tuple[float, float]:
    """Capacity in answers per second, and P50 in ms of one request at a time."""
    with endpoints.endpoint(artifact, ensemble=arm.ensemble, beam_width=width, **arm.options) as server:
        _, alone = capacity(server, sample, 1, seconds)
        most, _ = capacity(server, sample, IN_FLIGHT, seconds)
    return most, 1000 * median(alone)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("ablation", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-width", type=int, default=128)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of each of the two loads of an arm and round"
    )
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args(argv)
    run = report.begin(a)
    sample = traffic.histories(a.artifact, 2000)
    arms = {
        arm.name: partial(measure, arm, a.artifact, sample, a.beam_width, a.seconds)
        for arm in ARMS
        if arm.ensemble != "recommend_draft" or has_draft(a.artifact)
    }
    found = {}
    for name, rounds in turns.in_turns(arms, a.rounds, label="arms").items():
        rates = [most for most, _ in rounds]
        found[name] = {
            "capacity": median(rates),
            "capacities": rates,
            "p50_ms": median(p50 for _, p50 in rounds),
        }
    spread = {name: turns.extremes(each["capacities"])[1:] for name, each in found.items()}
    rows = [
        (
            name,
            f"{each['capacity']:.1f}",
            "{:.0f} to {:.0f}".format(*spread[name]),
            f"{each['p50_ms']:.2f}",
        )
        for name, each in found.items()
    ]
    print(report.columns(("", "answers/s", "spread", "p50 ms"), rows))
    run.publish({"arms": found}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
