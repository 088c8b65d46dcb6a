"""The highest request rate whose P99 stays within the SLO, by perf_analyzer, cross-checked by the replayer.

    genrec bench sweep artifacts/beauty --slo-p99-ms 100

Starts its own server unless --url is given. Writes sweep.csv, sweep.json, sweep.png and everything
perf_analyzer said to the output folder. Load generator and server share the machine's cores.
perf_analyzer seeds its arrivals alike in every run, so measuring a rate again shows the noise of the machine,
not of the arrivals; the replayer draws its own.
"""

from __future__ import annotations

import asyncio
import csv
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm

from genrec.errors import ArtifactError, InputError
from perf.kit import asking, endpoints, machine, report, traffic, turns, worth
from perf.slo import replay
from perf.slo.analyzer import Point, Window, measure, write_input_data
from perf.slo.rate_search import Measure, confirm, search
from perf.slo.sweep_plot import plot_sweep

DATA = "histories.json"
FILES = {kind: f"sweep.{kind}" for kind in ("csv", "json", "png")}
STEPS_TO_CAPACITY = 4  # of the default rates: a quarter of the sequential rate per step
LARGEST_RATE = 4  # times the sequential rate, where the default rates end
SETTLED_S = 30.0  # in which a server that was overloaded answers again


@dataclass(frozen=True)
class Sweep:
    """What a sweep found; `highest_rate` is 0 when no rate holds the SLO."""

    slo_p99_ms: float
    highest_rate: float
    confirmed: bool  # whether it was measured again
    answered_rate: float | None  # of its confirmations the least; None where there were none
    reached_end: bool  # whether no higher rate was tried: the limit is beyond
    points: list[Point]  # of the search, in the order measured
    confirmations: list[Point]  # the highest rates, measured again
    sequential_ms: float  # median of requests one after the other
    cross_check: replay.ReplaySummary | None  # the replayer at the highest rate
    files: dict[str, str]


def sweep(
    artifact: Path,
    slo_p99_ms: float,
    out: Path,
    *,
    rates: tuple[float, float, float] | None = None,
    precision: float | None = None,
    window: Window | None = None,
    confirmations: int = 2,
    cross_check_s: float = 20.0,
    histories: int = 5000,
    top_k: int = 10,
    seed: int = 0,
    url: str | None = None,
    server_json: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Search `rates` (start, end, step per second; none: from the latency of single requests).

    After every point a few of the histories are asked again, for what the answers are worth (perf/kit/worth.py).
    `precision` is the last gap of the search in requests per second (a quarter step when none), `options` are
    the launcher's. Returns the fields of `Sweep` and the machine's facts, as JSON types. Raises InputError,
    ArtifactError, LaunchError, and the client's errors when the server does not answer.
    """
    import_module("matplotlib")  # now, and not after minutes of measuring: the picture comes last
    if slo_p99_ms <= 0:
        raise InputError("slo_p99_ms", f"is {slo_p99_ms}", "more than 0 ms")
    sample = traffic.histories(artifact, histories, seed)
    with endpoints.endpoint(artifact, url, server_json, **options) as server:
        out.mkdir(parents=True, exist_ok=True)  # not for an artifact that cannot be served
        write_input_data(out / DATA, sample, top_k, asking.further_inputs(server))
        single_s = sequential(server, sample, top_k)
        answers: list[worth.Answer] = []
        bar = tqdm(desc="sweep", unit="point", file=sys.stderr, disable=None)  # in a log the points suffice

        def once(rate: float) -> Point:
            bar.set_postfix_str(f"measuring {rate:g}/s")
            point = measure(server, rate, slo_p99_ms, window or Window(), out, DATA)
            bar.update()
            bar.write(line(point), file=sys.stderr)
            settle(server, sample, top_k)
            answers.extend(worth.ask(server, sample, top_k))  # perf_analyzer has kept none
            return point

        highest, points, again = _search(once, rates or default_rates(single_s), precision, confirmations)
        bar.close()
        if not any(point.throughput for point in points):
            raise ArtifactError("perf_analyzer", f"answered at no rate: {'; '.join(points[0].problems)}")
        check = None
        if highest and cross_check_s:
            arrivals = traffic.poisson(highest, max(int(highest * cross_check_s), 1), seed + 1)
            check = replay.run(server, sample, arrivals, slo_p99_ms, top_k=top_k)
    held = [point.throughput for point in again if point.rate == highest and point.throughput]
    answered, ended = min(held, default=None), all(point.rate <= highest for point in points)
    found = Sweep(
        slo_p99_ms, highest, bool(held), answered, ended, points, again, 1000 * single_s, check, FILES
    )
    checked = worth.worth_of(artifact, answers, top_k)
    print(worth.line(checked), file=sys.stderr)
    return _write(found, checked, f"{server.ensemble}, {artifact.name}", out)


def _search(
    once: Measure, rates: tuple[float, float, float], precision: float | None, confirmations: int
) -> tuple[float, list[Point], list[Point]]:
    """The highest rate that holds, and all that `once` measured: in the search, and to confirm what it found."""
    measured: list[Point] = []

    def keep(rate: float) -> Point:
        measured.append(once(rate))
        return measured[-1]

    def one(rate: float) -> Point:
        """An unstable latency within the SLO says nothing yet: once more. Both stay in the results."""
        point = keep(rate)
        return keep(rate) if point.unsure else point

    start, stop, step = rates
    points = search(one, start, stop, step, step / 4 if precision is None else precision)
    searched = len(measured)
    highest, _ = confirm(one, points, confirmations)
    return highest, measured[:searched], measured[searched:]


def _write(found: Sweep, checked: worth.Worth, title: str, out: Path) -> dict[str, Any]:
    """CSV, picture and JSON into `out`; what the JSON holds."""
    points = found.points + found.confirmations
    write_csv(out / FILES["csv"], points)
    plot_sweep(points, found.slo_p99_ms, found.highest_rate, title, out / FILES["png"])
    result = {"benchmark": "sweep", **asdict(found), **checked._asdict(), "machine": machine.facts()}
    (out / FILES["json"]).write_text(json.dumps(result, indent=2) + "\n")
    return result


def sequential(
    server: endpoints.Endpoint, sample: traffic.Histories, top_k: int, requests: int = 20
) -> float:
    """Median seconds of requests sent one after the other (after a few unmeasured ones)."""

    async def one_by_one() -> list[float]:
        taken = []
        async with asking.sending(server) as client:
            for number in range(requests + 5):
                begun = time.perf_counter()
                await client.recommend(sample[number % len(sample)], top_k)
                taken.append(time.perf_counter() - begun)
        return taken

    return statistics.median(asyncio.run(one_by_one())[5:])


def default_rates(single_s: float) -> tuple[float, float, float]:
    """Start, end, step from the seconds of a single request; they overlap, so the end is above 1 / time."""
    step = max(round(1 / single_s / STEPS_TO_CAPACITY, 1), 0.1)
    return step, LARGEST_RATE / single_s, step


def settle(server: endpoints.Endpoint, sample: traffic.Histories, top_k: int) -> None:
    """Wait until the server answers a single request: a point that overloaded it must not spoil the next."""
    end = time.monotonic() + SETTLED_S
    while True:
        try:
            sequential(server, sample, top_k, 1)
            return
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def line(point: Point) -> str:
    """One point for people."""
    if point.p99_ms is None:
        return f"{point.rate:8g}/s  {'':44}  not held: {'; '.join(point.problems)}"
    text = f"{point.rate:8g}/s  answered {point.throughput:8.2f}/s"
    text += f"  p50 {point.p50_ms:7.1f}  p99 {point.p99_ms:7.1f} ms"
    return f"{text}  {'held' if point.held else 'not held: ' + '; '.join(point.problems)}"


def verdict(found: Mapping[str, Any]) -> str:
    """What a sweep found, for people: the rate, and why it may not be the limit."""
    slo, rate = f"{found['slo_p99_ms']:g} ms", found["highest_rate"]
    if not rate:
        return f"no rate that was tried holds a P99 of {slo}"
    lines = [f"highest rate with P99 <= {slo}: {rate:g} requests/s"]
    if found["reached_end"]:
        lines.append(
            f"the range ended before the limit was found: {rate:g}/s was the highest rate tried, and it still holds; "
            "`genrec bench sweep --rates START:END:STEP` tries higher ones"
        )
    if not found["confirmed"]:
        lines.append("not confirmed: the rate was not measured again")
    return "\n".join(lines)


def write_csv(path: Path, points: list[Point]) -> None:
    """One row per measurement, in order of rate."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        for point in sorted(points, key=lambda point: point.rate):
            writer.writerow({**asdict(point), "problems": "; ".join(point.problems)})


def parse_rates(text: str) -> tuple[float, float, float]:
    """START:END:STEP."""
    try:
        start, stop, step = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise InputError("rates", f"are {text!r}", "START:END:STEP in requests per second") from error
    return start, stop, step


def main(argv: Sequence[str] | None = None) -> None:
    """Print every point, and one JSON object as the last line of stdout."""
    parser = report.arguments("sweep", __doc__)
    endpoints.add_arguments(parser)
    parser.add_argument("--slo-p99-ms", type=float, required=True)
    parser.add_argument(
        "--rates", type=parse_rates, help="START:END:STEP per second; none: from single requests"
    )
    parser.add_argument(
        "--precision", type=float, help="last gap of the search, per second; none: a quarter step"
    )
    parser.add_argument(
        "--window-requests", type=int, default=400, help="of each of the three windows pooled, at least"
    )
    parser.add_argument(
        "--count", type=int, default=0, help="requests per point, one window: quick and noisy"
    )
    parser.add_argument("--trials", type=int, default=6, help="windows before a point is given up")
    parser.add_argument("--stability-percent", type=float, default=100.0, help="how far windows may differ")
    parser.add_argument("--confirmations", type=int, default=2, help="more measurements of the highest rate")
    parser.add_argument(
        "--cross-check-s", type=float, default=20.0, help="seconds of replay at the highest rate"
    )
    parser.add_argument("--histories", type=int, default=5000)
    parser.add_argument("--out", type=Path, help="output folder (default artifacts/perf/sweep-<artifact>)")
    a = parser.parse_args(argv)
    options, run = endpoints.options_of(a), report.begin(a)
    out = a.out or Path("artifacts") / "perf" / f"sweep-{a.artifact.name}"
    found = sweep(
        a.artifact,
        a.slo_p99_ms,
        out,
        rates=a.rates,
        precision=a.precision,
        window=Window(
            requests=a.window_requests, trials=a.trials, count=a.count, stability=a.stability_percent
        ),
        confirmations=a.confirmations,
        cross_check_s=a.cross_check_s,
        histories=a.histories,
        top_k=a.top_k,
        seed=a.seed,
        url=a.url,
        server_json=a.server_json,
        **options,
    )
    print(verdict(found))
    met = [point["p99_ms"] for point in found["confirmations"] if point["rate"] == found["highest_rate"]]
    spread = {"p99_ms_at_highest_rate": turns.extremes(met)[1:]} if met else {}
    run.publish(found, repeats=1 + a.confirmations, spread=spread)


if __name__ == "__main__":
    main()
