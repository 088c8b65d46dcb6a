"""Open-loop replay: requests leave when they are due, whatever became of others; latency counts from then.

    genrec bench replay artifacts/beauty --rate 40 --requests 2000 --slo-p99-ms 100

perf_analyzer counts from the actual send and aborts on the first refusal, so what a user waits under
overload, and what is shed, only this measures. It runs on the server's own cores, ahead of it where it has the
right to (`CAP_SYS_NICE`); late sends are reported, not hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.errors import Overloaded
from genrec.errors import GenrecError, InputError
from genrec.progress import counting
from perf.kit import asking, endpoints, report, traffic, worth

ANSWERED, SHED, FAILED = "answered", "shed", "failed"
LATE_S = 0.005  # a send this much after its time counts as late
WARM_UP = 8
SCHEDULE = {"rate": 20.0, "requests": 1000, "burst": 1}  # if nobody says otherwise


@dataclass(frozen=True)
class ReplayedRequest:
    """One request, seconds since the start: when it was due, when it left, when its answer or error came."""

    due: float
    sent: float
    done: float
    outcome: str  # answered, shed, failed
    problem: str = ""


@dataclass(frozen=True)
class ReplaySummary:
    """Counts, rates per second, and latencies in ms since a request was due, of the answered ones."""

    requests: int
    answered: int
    shed: int
    failed: int
    offered_rate: float
    sent_rate: float
    goodput: float  # answers within the SLO, per second of offered load
    within_slo: float  # their share of all requests
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    late: int  # sends more than LATE_S after they were due
    late_p99_ms: float
    late_max_ms: float
    shed_by: dict[str, int]  # who refused: the first word of the refusal, as `router` or `deadline_ms`
    problems: dict[str, int]  # the texts of failures, the most frequent ones


class Sender(Protocol):
    """What is replayed against: clients.aio.AsyncRecommender, or a double of it."""

    async def recommend(self, history: ArrayLike, top_k: int = 10, *, deadline_ms: int | None = None) -> Any:
        """Answer or raise GenrecError."""


def percentile(values: Sequence[float] | NDArray[np.float64], share: float) -> float | None:
    """Nearest rank: the smallest value that at least `share` (0 to 1) of all do not exceed; None of none."""
    if not len(values):
        return None
    rank = max(int(np.ceil(share * len(values) - 1e-9)), 1)
    return float(np.partition(np.asarray(values, np.float64), rank - 1)[rank - 1])


async def replay(
    sender: Sender,
    histories: Sequence[ArrayLike],
    arrivals: traffic.Seconds,
    *,
    top_k: int = 10,
    deadline_ms: int | None = None,
    show: bool = True,
) -> list[ReplayedRequest]:
    """Send history i mod len at `arrivals[i]` (ascending seconds); every request ends in one event."""
    events: list[ReplayedRequest] = []
    bar = counting("replay", len(arrivals), "request", disable=not show, mininterval=0.5)
    start = time.monotonic() + 0.05

    async def send(number: int, due: float) -> None:
        sent, outcome, problem = time.monotonic(), ANSWERED, ""
        try:
            await sender.recommend(histories[number % len(histories)], top_k, deadline_ms=deadline_ms)
        except Overloaded as error:
            outcome, problem = SHED, str(error)
        except GenrecError as error:
            outcome, problem = FAILED, f"{type(error).__name__}: {error}"
        events.append(ReplayedRequest(due, sent - start, time.monotonic() - start, outcome, problem))
        bar.update()

    await open_loop(arrivals, start, send)
    bar.close()
    return events


async def open_loop(
    arrivals: traffic.Seconds, start: float, send: Callable[[int, float], Coroutine[Any, Any, None]],
    decided: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """`send(number, due)` at every arrival, `due` seconds after `start` (time.monotonic); ends when all have.

    Nothing more is sent once what the load was to show is `decided`. Raises what a `send` raised, once all have ended:
    a load would be a request less.
    """
    tasks: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            failed.append(error)

    for number, due in enumerate(arrivals.tolist()):
        wait = start + due - time.monotonic()
        if wait > 0:  # what is overdue leaves at once
            await asyncio.sleep(wait)
        if decided():
            break
        task = asyncio.create_task(send(number, due))
        tasks.add(task)  # asyncio keeps weak references only
        task.add_done_callback(ended)
    while tasks:
        await asyncio.wait(tasks)
    if failed:
        raise failed[0]


def summarise(events: Sequence[ReplayedRequest], slo_ms: float | None) -> ReplaySummary:
    """The figures of a replay. Without an SLO every answer is within it."""
    due = np.sort([event.due for event in events])
    sent = np.sort([event.sent for event in events])
    latency = np.array([1000 * (e.done - e.due) for e in events if e.outcome == ANSWERED])
    within = int((latency <= (np.inf if slo_ms is None else slo_ms)).sum())
    late = np.array([1000 * max(event.sent - event.due, 0.0) for event in events])
    # Arrivals count from time 0 on, so the last one ends the load; all at time 0 are spread over their
    # answers.
    offered_s = max(float(due[-1]) or max(event.done for event in events), 1e-9)
    sent_s = max(float(sent[-1]), 1e-9) if due[-1] else offered_s
    problems = Counter(event.problem for event in events if event.outcome == FAILED)
    shed_by = Counter(event.problem.partition(":")[0] for event in events if event.outcome == SHED)
    return ReplaySummary(
        requests=len(events),
        answered=len(latency),
        shed=sum(event.outcome == SHED for event in events),
        failed=sum(event.outcome == FAILED for event in events),
        offered_rate=len(events) / offered_s,
        sent_rate=len(events) / sent_s,
        goodput=within / offered_s,
        within_slo=within / len(events),
        p50_ms=percentile(latency, 0.50),
        p90_ms=percentile(latency, 0.90),
        p99_ms=percentile(latency, 0.99),
        max_ms=percentile(latency, 1.0),
        late=int((late > 1000 * LATE_S).sum()),
        late_p99_ms=percentile(late, 0.99) or 0.0,
        late_max_ms=float(late.max()),
        shed_by=dict(shed_by.most_common()),
        problems=dict(problems.most_common(5)),
    )


def run(
    server: endpoints.Endpoint,
    histories: Sequence[ArrayLike],
    arrivals: traffic.Seconds,
    slo_ms: float | None = None,
    *,
    top_k: int = 10,
    deadline_ms: int | None = None,
    show: bool = True,
) -> ReplaySummary:
    """Replay against a server over one gRPC connection, after a few requests to warm it."""

    async def session() -> list[ReplayedRequest]:
        async with asking.sending(server) as recommender:
            for number in range(WARM_UP):
                await recommender.recommend(histories[number % len(histories)], top_k)
            with undisturbed():
                return await replay(
                    recommender, histories, arrivals, top_k=top_k, deadline_ms=deadline_ms, show=show
                )

    return summarise(asyncio.run(session()), slo_ms)


@contextmanager
def undisturbed() -> Iterator[None]:
    """This process sends: without collections, which would look like latency of the server, and before anything else
    on the machine, if allowed to, since it stands for other machines. Where a loaded server makes it wait for a core,
    what is measured is the sender, late by up to 120 ms at twice the capacity.
    """
    gc.disable()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        gc.enable()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def arrivals_of(arguments: argparse.Namespace) -> traffic.Seconds:
    """The schedule the arguments ask for, which they say from now on. Raises InputError."""
    said = {name: value for name in SCHEDULE if (value := getattr(arguments, name)) is not None}
    if path := arguments.arrivals:
        if said:
            raise InputError("arrivals", f"are given together with --{next(iter(said))}", "one of the two")
        try:
            return traffic.given([float(line) for line in path.read_text().split()])
        except (OSError, ValueError) as error:
            limit = "a file of milliseconds since the start"
            raise InputError("arrivals", f"are in {path}: {error}", limit) from error
    vars(arguments).update(SCHEDULE | said)
    if arguments.burst > 1:
        return traffic.bursts(arguments.rate, arguments.requests, arguments.burst)
    return traffic.poisson(arguments.rate, arguments.requests, arguments.seed)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for people and one JSON object as the last line."""
    parser = report.arguments("replay", __doc__)
    endpoints.add_arguments(parser)
    parser.add_argument("--rate", type=float, help="requests per second; default: 20")
    parser.add_argument("--requests", type=int, help="default: 1000")
    parser.add_argument("--burst", type=int, help="arrivals at the same instant; 1, the default: Poisson")
    parser.add_argument("--arrivals", type=Path, help="file of milliseconds since the start, one per line")
    parser.add_argument("--slo-p99-ms", type=float, help="latency that counts as good; none: any answer")
    parser.add_argument(
        "--deadline-ms", type=int, help="sent with every request; the server sheds what passes it"
    )
    parser.add_argument("--histories", type=int, default=5000)
    a = parser.parse_args(argv)
    options, arrivals, this = endpoints.options_of(a), arrivals_of(a), report.begin(a)
    histories = traffic.histories(a.artifact, a.histories, a.seed)
    with endpoints.endpoint(a.artifact, a.url, a.server_json, **options) as server:
        found = run(server, histories, arrivals, a.slo_p99_ms, top_k=a.top_k, deadline_ms=a.deadline_ms)
        answers = worth.ask(server, histories, a.top_k)
    checked = worth.worth_of(a.artifact, answers, a.top_k)
    figures = {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(found).items()}
    report.show(figures)
    print(worth.line(checked))
    this.publish({**figures, **checked._asdict()}, repeats=1)


if __name__ == "__main__":
    main()
