"""Half to twice of what the server can do, with a deadline on every request: who is refused, and who waits how long.

    genrec bench overload artifacts/ml-100k --deadline-ms 100

The server's capacity is measured first and in between (16 requests in flight, no deadline), then Poisson arrivals at
shares of it, open loop, latency from the scheduled time. A server that sheds well keeps the P99 of what it admits flat
past 1.0, and its goodput near capacity. Writes overload.png. Load generator and server share the machine's cores;
`client` says how many of them the generator took, and what it takes the server does not have.

With --router HAProxy stands before the server and sheds, as behind `genrec route`; the capacity is then that of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from deploy.ports import choose_ports
from deploy.router.limits import Limits
from genrec.errors import InputError
from perf.kit import endpoints, plot, report, traffic, worth
from perf.slo import replay
from perf.slo.capacity import capacity

SHARES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
IN_FLIGHT = 16


class LoadShare(NamedTuple):
    """A share of the capacity, what became of it, and how many cores the load generator took."""

    share: float
    summary: replay.ReplaySummary
    client_cores: float


def overload(
    server: endpoints.Endpoint,
    histories: traffic.Histories,
    deadline_ms: int,
    seconds: float,
    top_k: int,
    seed: int,
) -> tuple[float, list[LoadShare], list[worth.Answer]]:
    """Capacity in answers per second, a replay per share of it, and answers to a few requests after each.

    The capacity is measured again after each share: of all, the median counts, as neighbours make a machine slower for
    a minute at a time.
    """
    found, loads = [capacity(server, histories, IN_FLIGHT, seconds / 2, top_k)[0]], []
    answers: list[worth.Answer] = []
    for number, share in enumerate(SHARES):
        rate = share * median(found)
        arrivals = traffic.poisson(rate, max(int(rate * seconds), 1), seed + number)
        begun, busy = time.perf_counter(), time.process_time()
        summary = replay.run(server, histories, arrivals, deadline_ms, top_k=top_k, deadline_ms=deadline_ms)
        loads.append(LoadShare(share, summary, (time.process_time() - busy) / (time.perf_counter() - begun)))
        found.append(capacity(server, histories, IN_FLIGHT, seconds / 4, top_k)[0])
        answers += worth.ask(server, histories, top_k)
    return median(found), loads, answers


@contextmanager
def behind_router(artifact: Path, ensemble: str, **options: Any) -> Iterator[endpoints.Endpoint]:
    """One server of its own behind a router with the limits of `genrec route`."""
    from deploy.router.fleet import running_fleet  # here: a client machine needs no server

    with running_fleet(artifact, 1, Limits(), choose_ports(), **options) as fleet:
        yield endpoints.Endpoint(fleet.router.ports.grpc_url, ensemble=ensemble, artifact=artifact)


def against_goals(most: float, loads: Sequence[LoadShare], deadline_ms: int) -> dict[str, float | None]:
    """What is left of the capacity, and of the deadline, where twice as much is asked."""
    twice = next(each.summary for each in loads if each.share == 2.0)
    return {
        "goodput_2x_of_capacity": round(twice.goodput / most, 3),
        "p99_of_deadline": None if twice.p99_ms is None else round(twice.p99_ms / deadline_ms, 3),
    }


def table(most: float, loads: Sequence[LoadShare]) -> str:
    """For people."""
    head = (
        "share",
        "asked/s",
        "answered",
        "shed",
        "failed",
        "goodput/s",
        "p50 ms",
        "p99 ms",
        "client",
        "shed by",
    )
    rows = [
        (
            f"{share:.2f}", f"{r.offered_rate:.1f}", f"{r.answered / r.requests:.1%}", f"{r.shed / r.requests:.1%}",
            r.failed, f"{r.goodput:.1f}", *("-" if ms is None else f"{ms:.1f}" for ms in (r.p50_ms, r.p99_ms)),
            f"{cores:.2f}", ", ".join(f"{who} {count}" for who, count in r.shed_by.items()),
        )
        for share, r, cores in loads
    ]  # fmt: skip
    return f"capacity {most:.0f} answers/s\n{report.columns(head, rows)}"


def picture(loads: Sequence[LoadShare], deadline_ms: int, path: Path) -> None:
    """P99 of the admitted and goodput against the share of capacity."""
    figure, (latency, rate) = plot.panels(2, 1, (7, 5), sharex=True)
    shares, found = [each.share for each in loads], [each.summary for each in loads]
    for name, style in (("p99_ms", "o-"), ("p50_ms", "o--")):
        latency.plot(
            shares, [getattr(r, name) for r in found], style, label=f"{name[:3].upper()} of the admitted"
        )
    latency.axhline(deadline_ms, color="C3", label=f"deadline {deadline_ms} ms")
    latency.set(ylabel="ms", ylim=(0, None))
    rate.plot(shares, [r.offered_rate for r in found], "o:", color="0.6", label="asked")
    rate.plot(shares, [r.goodput for r in found], "o-", label="answered in time")
    rate.set(xlabel="share of capacity", ylabel="requests/s", ylim=(0, None))
    plot.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("overload", __doc__)
    endpoints.add_arguments(parser)
    parser.add_argument("--deadline-ms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load at every share")
    parser.add_argument("--histories", type=int, default=5000)
    parser.add_argument("--router", action="store_true", help="HAProxy before the server started here")
    parser.add_argument("--out", type=Path, help="folder of overload.png (default artifacts/perf)")
    a = parser.parse_args(argv)
    options, run = endpoints.options_of(a), report.begin(a)
    sample = traffic.histories(a.artifact, a.histories, a.seed)
    if a.router and (a.url or a.server_json):
        raise InputError("router", "is given together with a running server", "one of the two")
    options["ensembles"] = (a.ensemble,)  # no others, which would be probed meanwhile
    of_its_own = behind_router(a.artifact, **options) if a.router else None
    with of_its_own or endpoints.endpoint(a.artifact, a.url, a.server_json, **options) as server:
        most, loads, answers = overload(server, sample, a.deadline_ms, a.seconds, a.top_k, a.seed)
    out = a.out or Path("artifacts") / "perf"
    out.mkdir(parents=True, exist_ok=True)
    picture(loads, a.deadline_ms, out / "overload.png")
    checked = worth.worth_of(a.artifact, answers, a.top_k)
    print(table(most, loads))
    print(worth.line(checked))
    by_share = {
        f"{each.share:g}": {**asdict(each.summary), "client_cores": each.client_cores} for each in loads
    }
    goals = against_goals(most, loads, a.deadline_ms)
    run.publish({"capacity": most, **goals, **checked._asdict(), "shares": by_share}, repeats=1)


if __name__ == "__main__":
    main()
