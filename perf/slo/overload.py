"""Half to twice of what the server can do, with a deadline on every request: who is refused, and who waits how long.

    genrec bench overload artifacts/ml-100k --deadline-ms 100

The server's capacity is measured first (16 requests in flight, no deadline); then Poisson arrivals at shares of it,
open loop, latency from the scheduled time. A server that sheds well keeps the P99 of what it admits flat past 1.0,
and its goodput near capacity. Writes overload.png. Load generator and server share the machine's cores;
`client` says how many of them the generator took, and what it takes the server does not have.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from perf.kit import endpoints, machine, traffic
from perf.slo import replay
from perf.slo.capacity import capacity

SHARES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
IN_FLIGHT = 16


class LoadShare(NamedTuple):
    """A share of the capacity, what became of it, and how many cores the load generator took."""

    share: float
    report: replay.ReplaySummary
    client_cores: float


def overload(
    server: endpoints.Endpoint,
    histories: traffic.Histories,
    deadline_ms: int,
    seconds: float,
    top_k: int,
    seed: int,
) -> tuple[float, list[LoadShare]]:
    """Capacity in answers per second, and a replay per share of it."""
    most, _ = capacity(server, histories, IN_FLIGHT, seconds / 2, top_k)
    loads = []
    for number, share in enumerate(SHARES):
        arrivals = traffic.poisson(share * most, max(int(share * most * seconds), 1), seed + number)
        begun, busy = time.perf_counter(), time.process_time()
        report = replay.run(server, histories, arrivals, deadline_ms, top_k=top_k, deadline_ms=deadline_ms)
        loads.append(LoadShare(share, report, (time.process_time() - busy) / (time.perf_counter() - begun)))
    return most, loads


def table(most: float, loads: Sequence[LoadShare]) -> str:
    """For people."""
    head = f"{'share':>6}{'asked/s':>9}{'answered':>10}{'shed':>8}{'failed':>8}"
    head += f"{'goodput/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'client':>8}"
    return "\n".join(
        [f"capacity {most:.0f} answers/s", head]
        + [
            f"{share:6.2f}{r.sent_rate:9.1f}{r.answered / r.requests:10.1%}{r.shed / r.requests:8.1%}{r.failed:8}"
            f"{r.goodput:11.1f}{r.p50_ms or 0:9.1f}{r.p99_ms or 0:9.1f}{cores:8.2f}"
            for share, r, cores in loads
        ]
    )


def plot(loads: Sequence[LoadShare], deadline_ms: int, path: Path) -> None:
    """P99 of the admitted and goodput against the share of capacity."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: no global state, no display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    latency, rate = figure.subplots(2, 1, sharex=True)
    shares, reports = [each.share for each in loads], [each.report for each in loads]
    for name, style in (("p99_ms", "o-"), ("p50_ms", "o--")):
        latency.plot(
            shares, [getattr(r, name) for r in reports], style, label=f"{name[:3].upper()} of the admitted"
        )
    latency.axhline(deadline_ms, color="C3", label=f"deadline {deadline_ms} ms")
    latency.set(ylabel="ms", ylim=(0, None))
    rate.plot(shares, [r.sent_rate for r in reports], "o:", color="0.6", label="asked")
    rate.plot(shares, [r.goodput for r in reports], "o-", label="answered in time")
    rate.set(xlabel="share of capacity", ylabel="requests/s", ylim=(0, None))
    for axis in (latency, rate):
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    endpoints.add_arguments(parser)
    parser.add_argument("--deadline-ms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load at every share")
    parser.add_argument("--histories", type=int, default=5000)
    parser.add_argument("--out", type=Path, help="folder of overload.png (default artifacts/perf)")
    a = parser.parse_args()
    sample = traffic.histories(a.artifact, a.histories, a.seed)
    with endpoints.endpoint(a.artifact, a.url, a.server_json, **endpoints.options_of(a)) as server:
        most, loads = overload(server, sample, a.deadline_ms, a.seconds, a.top_k, a.seed)
    out = a.out or Path("artifacts") / "perf"
    out.mkdir(parents=True, exist_ok=True)
    plot(loads, a.deadline_ms, out / "overload.png")
    machine.report(facts := machine.facts(), sys.stdout)
    print(table(most, loads))
    by_share = {
        f"{each.share:g}": {**asdict(each.report), "client_cores": each.client_cores} for each in loads
    }
    print(
        json.dumps(
            {
                "benchmark": "overload",
                "capacity": most,
                "shares": by_share,
                "settings": machine.settings_of(vars(a)),
                "machine": facts,
            }
        )
    )


if __name__ == "__main__":
    main()
