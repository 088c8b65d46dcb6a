"""Servers that differ by one thing, one at a time and in turns: what each gets answered, and how long a user waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from perf.kit import endpoints, report, traffic, turns, worth
from perf.slo.capacity import capacity

IN_FLIGHT = 16
DRAFT = "recommend_draft"


@dataclass(frozen=True)
class ServedArm:
    """One way to serve: an ensemble and the launcher's options."""

    name: str
    ensemble: str = "recommend"
    options: dict[str, Any] = field(default_factory=dict)


class ServedRound(NamedTuple):
    """Answers per second, P50 in ms of one request at a time, and answers to a few requests after both loads.

    There is no P50 where no request began and ended within its load.
    """

    capacity: float
    p50_ms: float | None
    answers: list[worth.Answer]


def compare(
    benchmark: str, description: str | None, arms: Sequence[ServedArm], argv: Sequence[str] | None
) -> None:
    """A whole benchmark over these arms: its arguments, a table, and one JSON object as the last line.

    Capacity is what 16 requests in flight get answered per second; P50 is of one request at a time.
    """
    parser = report.arguments(benchmark, description)
    parser.add_argument("artifact", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of each of the two loads of an arm and round"
    )
    report.add_options(parser, beam_width=128, rounds=3)
    a = parser.parse_args(argv)
    if DRAFT in (arm.ensemble for arm in arms):
        endpoints.check_drafts(a.artifact)
    run = report.begin(a)
    sample = traffic.histories(a.artifact, 2000)
    work = {arm.name: partial(_measure, arm, a.artifact, sample, a.beam_width, a.seconds) for arm in arms}
    given = turns.in_turns(work, a.rounds, label="arms")
    checked = {
        name: worth.worth_of(a.artifact, [answer for each in rounds for answer in each.answers])
        for name, rounds in given.items()
    }
    found = {name: {**figures(rounds), **checked[name]._asdict()} for name, rounds in given.items()}
    spread = {name: turns.extremes(each["capacities"])[1:] for name, each in found.items()}
    print(table(found))
    print(worth.lines(checked))
    run.publish({"arms": found}, repeats=a.rounds, spread=spread)


def figures(rounds: Sequence[ServedRound]) -> dict[str, Any]:
    """Medians over the rounds that have one; None where none has."""
    alone = [each.p50_ms for each in rounds if each.p50_ms is not None]
    return {
        "capacity": median(each.capacity for each in rounds),
        "capacities": [each.capacity for each in rounds],
        "p50_ms": median(alone) if alone else None,
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """For people."""
    rows = [
        (
            name, f"{each['capacity']:.1f}", "{:.0f} to {:.0f}".format(*turns.extremes(each["capacities"])[1:]),
            "-" if each["p50_ms"] is None else f"{each['p50_ms']:.2f}",
        )
        for name, each in found.items()
    ]  # fmt: skip
    return report.columns(("", "answers/s", "spread", "p50 ms"), rows)


def _measure(
    arm: ServedArm, artifact: Path, sample: traffic.Histories, width: int, seconds: float
) -> ServedRound:
    """Both loads, one after the other."""
    with endpoints.endpoint(artifact, ensemble=arm.ensemble, beam_width=width, **arm.options) as server:
        _, alone = capacity(server, sample, 1, seconds)
        most, _ = capacity(server, sample, IN_FLIGHT, seconds)
        return ServedRound(most, 1000 * median(alone) if alone else None, worth.ask(server, sample))
