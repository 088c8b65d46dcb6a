"""Batches by tokens against Triton's dynamic batcher, on histories whose lengths follow a power law (xGR, section 7).

    genrec bench batching artifacts/long

The same server three times: `generate` fed by Triton's own batcher, which counts requests; by our scheduler on one
stream; on two. The same arrivals, open loop, at shares of what Triton's batcher can do. Servers run one at a time, in
rounds that turn the order around. The figure is the highest rate that holds the P99 in the median of the rounds.
An artifact that is not there is made, with random weights, and reads up to 1,500 tokens.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from deploy import launcher
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from perf.kit import endpoints, report, traffic, turns, worth
from perf.kit.mock import SHAPE, mock_artifact
from perf.slo import replay
from perf.slo.capacity import capacity
from perf.slo.plain_generate import MODEL

LONG = replace(
    SHAPE, codebook_sizes=(256,) * 3, code_offsets=(), vocab_size=0, max_history=500, hidden_size=128,
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=384,
)  # fmt: skip
ITEMS = 20_000
SHORTEST, EXPONENT = 4, 1.1  # items of a history; the tail of a Pareto distribution
SHARES = (0.3, 0.5, 0.7, 0.85, 1.0, 1.15)
IN_FLIGHT = 64  # fewer leave a fast machine waiting, and all ways hold the highest share


@dataclass(frozen=True)
class BatcherArm:
    """Who makes the batches, and how many run at once."""

    name: str
    plain: bool
    streams: int


ARMS = (
    BatcherArm("Triton's batcher", True, 1),
    BatcherArm("by tokens", False, 1),
    BatcherArm("by tokens, two streams", False, 2),
)


def histories(artifact: Path, count: int, seed: int) -> traffic.Histories:
    """Random items; lengths of a power law, cut at what the model reads."""
    draw, config = np.random.default_rng(seed), load_config(artifact)
    items = load_catalogue(artifact, config).item_ids
    lengths = np.minimum(SHORTEST * (1 + draw.pareto(EXPONENT, count)), config.max_history).astype(int)
    return [draw.choice(items, length) for length in lengths]


@contextmanager
def repository(plain: bool) -> Iterator[None]:
    """The launcher's model repository, with another `generate` when `plain`."""
    ours = launcher.REPOSITORY
    with tempfile.TemporaryDirectory(prefix="genrec-perf-") as folder:
        if plain:
            launcher.REPOSITORY = Path(shutil.copytree(ours, Path(folder) / ours.name))
            (launcher.REPOSITORY / "generate" / "1" / "model.py").write_text(MODEL)
        try:
            yield
        finally:
            launcher.REPOSITORY = ours


def measure(
    arm: BatcherArm, artifact: Path, sample: traffic.Histories, rates: list[float], seconds: float, slo_ms: float,
    width: int,
) -> tuple[list[float], list[replay.ReplaySummary], list[worth.Answer]]:  # fmt: skip
    """The rates asked (shares of this arm's capacity where none are given), the replay of each, and answers to a few
    requests after each.
    """
    reports, answers = [], list[worth.Answer]()
    with (
        repository(arm.plain),
        endpoints.endpoint(artifact, beam_width=width, streams=arm.streams) as server,
    ):
        most, _ = capacity(server, sample, IN_FLIGHT, seconds / 2)
        rates = rates or [round(share * most, 1) for share in SHARES]
        for number, rate in enumerate(rates):
            arrivals = traffic.poisson(rate, max(int(rate * seconds), 1), number)
            reports.append(replay.run(server, sample, arrivals, slo_ms, show=False))
            answers += worth.ask(server, sample)
    return rates, reports, answers


def held(rates: list[float], p99: list[float], slo_ms: float) -> float:
    """The highest rate up to which every P99 is within the SLO; 0 when the lowest is not."""
    best = 0.0
    for rate, ms in zip(rates, p99, strict=True):
        if ms > slo_ms:
            break
        best = rate
    return best


def _ms(of_answers: float | None) -> float:
    """inf where nothing was answered."""
    return float("inf") if of_answers is None else of_answers


def _p99_of(found: replay.ReplaySummary, slo_ms: float) -> float:
    """Of all requests: who is refused or fails has waited for ever; inf where these alone put it beyond the SLO."""
    if found.p99_ms is None or found.shed + found.failed > 0.01 * found.requests:
        return float("inf")
    beyond = found.within_slo < 0.99 and found.p99_ms <= slo_ms
    return float("inf") if beyond else found.p99_ms


def summary(
    rates: list[float], rounds: Mapping[str, list[list[replay.ReplaySummary]]], slo_ms: float
) -> dict[str, dict[str, Any]]:
    """Medians over the rounds, per arm. A rate at which nothing was answered has no P99 and does not hold."""
    found = {}
    for name, reports in rounds.items():
        each = [[_p99_of(r, slo_ms) for r in one] for one in reports]
        p99 = [median(values) for values in zip(*each, strict=True)]
        p50 = [median(_ms(r.p50_ms) for r in values) for values in zip(*reports, strict=True)]
        found[name] = {
            "p50_ms": p50, "p99_ms": p99, "p99_ms_of_rounds": each, "highest_rate": held(rates, p99, slo_ms)
        }  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("batching", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--slo-p99-ms", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load at every rate")
    report.add_options(parser, beam_width=128, rounds=2)
    a = parser.parse_args(argv)
    run = report.begin(a)
    if not (a.artifact / "manifest.json").is_file():
        mock_artifact(a.artifact, LONG, ITEMS, draft=False)
    sample, rates = histories(a.artifact, 2000, seed=0), list[float]()
    answers: dict[str, list[worth.Answer]] = {arm.name: [] for arm in ARMS}

    def replays(arm: BatcherArm) -> list[replay.ReplaySummary]:
        """At the rates of the first arm that had a turn."""
        asked, found, more = measure(arm, a.artifact, sample, rates, a.seconds, a.slo_p99_ms, a.beam_width)
        rates[:] = asked
        answers[arm.name] += more
        return found

    arms = {arm.name: partial(replays, arm) for arm in ARMS}
    found = summary(rates, turns.in_turns(arms, a.rounds, label="arms"), a.slo_p99_ms)
    lengths = np.array([len(history) for history in sample])
    print(
        f"histories of {lengths.min()} to {lengths.max()} items, median {np.median(lengths):.0f}; P50 / P99 ms"
    )
    rows = [
        [name, *(f"{p50:.0f} / {p99:.0f}" for p50, p99 in zip(row["p50_ms"], row["p99_ms"], strict=True)),
         f"{row['highest_rate']:g}"]
        for name, row in found.items()
    ]  # fmt: skip
    print(report.columns(["requests/s", *(f"{rate:g}" for rate in rates), "holds"], rows))
    checked = {name: worth.worth_of(a.artifact, of) for name, of in answers.items()}
    print(worth.lines(checked))
    spread = {
        name: turns.extremes([held(rates, p99, a.slo_p99_ms) for p99 in row["p99_ms_of_rounds"]])[1:]
        for name, row in found.items()
    }
    figures = {name: {**row, **checked[name]._asdict()} for name, row in found.items()}
    run.publish({"rates": rates, "arms": figures}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
