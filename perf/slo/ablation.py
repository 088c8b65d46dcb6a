"""What each part of the scheduling is worth (xGR, figure 18): the same requests to servers that differ by one part.

    genrec bench ablation artifacts/ml-100k

A model of Triton for every pass; all passes in one process; batches by tokens; several streams. Servers run one at a
time, in rounds that turn the order around. Capacity is what 16 requests in flight get answered per second; P50 is of
one request at a time. Load generator and server share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from genrec.draft.load import has_draft
from perf.kit import endpoints, machine, traffic
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


def main() -> None:
    """Print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-width", type=int, default=128)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of each of the two loads of an arm and round"
    )
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    sample = traffic.histories(a.artifact, 2000)
    arms = [arm for arm in ARMS if arm.ensemble != "recommend_draft" or has_draft(a.artifact)]
    seen: dict[str, list[tuple[float, float]]] = {arm.name: [] for arm in arms}
    with tqdm(total=a.rounds * len(arms), desc="arms", file=sys.stderr) as bar:
        for number in range(a.rounds):
            for arm in arms[:: -1 if number % 2 else 1]:
                seen[arm.name].append(measure(arm, a.artifact, sample, a.beam_width, a.seconds))
                bar.update()
    machine.report(facts := machine.facts(), sys.stdout)
    print(f"{'':34}{'answers/s':>10}{'spread':>16}{'p50 ms':>9}")
    found = {}
    for name, rounds in seen.items():
        rates = [most for most, _ in rounds]
        found[name] = {
            "capacity": median(rates),
            "capacities": rates,
            "p50_ms": median(p50 for _, p50 in rounds),
        }
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"{name:34}{median(rates):10.1f}{spread:>16}{found[name]['p50_ms']:9.2f}")
    settings = machine.settings_of(vars(a))
    print(json.dumps({"benchmark": "ablation", "arms": found, "settings": settings, "machine": facts}))


if __name__ == "__main__":
    main()
