"""A steady load for minutes, and whether anything grows: memory, /dev/shm, slots in use, latency.

    genrec bench soak artifacts/beauty --minutes 5 --rate 20

Open loop, over gRPC and HTTP, with what real traffic has in it: short and long histories, empty ones, unknown items,
and some requests that must be refused or that run out of time. Memory of a process is what it has for itself (RSS
without shared pages): the arena's pages count for every process that has ever touched them, and are in /dev/shm anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clients.aio import AsyncRecommender
from clients.errors import BadRequest, Overloaded
from clients.wire import Recommendation
from deploy.launcher import RunningServer, running_server
from genrec.errors import GenrecError, InputError
from genrec.progress import counting
from perf.kit import report, traffic, turns, worth
from perf.slo.replay import open_loop, percentile
from perf.slo.soak_plot import plot_soak
from perf.slo.watch import Sample, Watch

WARM_UP = 0.4  # share of the time in which caches fill and allocators find their size
WINDOWS = 10
LEAST_MINUTES = 0.1
REFUSED, LATE, GOOD = "refused", "late", "good"
SHED = "shed"  # the arena was full: load, not an error
WRONG = "wrong, equal or too few items"


@dataclass(frozen=True)
class MixedRequest:
    """One request of the mix; `kind` says how it must end."""

    kind: str
    arguments: dict[str, Any]

    @property
    def excluded(self) -> ArrayLike:
        """Item ids that its answer is to leave out."""
        return self.arguments["history"] if self.arguments.get("exclude_history") else ()


@dataclass(frozen=True)
class SoakedRequest:
    """How a request ended, seconds since the start; `problem` is empty when it ended as it must."""

    kind: str
    due: float
    done: float
    problem: str = ""
    answer: Recommendation | None = None
    excluded: ArrayLike = ()  # item ids that the answer was to leave out


def mix(histories: traffic.Histories, count: int, seed: int) -> list[MixedRequest]:
    """8 of 10 are plain, one is odd but answered, one is refused or late."""
    draw = np.random.default_rng(seed)
    requests = []
    for number in range(count):
        history = histories[number % len(histories)]
        plain = {
            "history": history[: int(draw.integers(1, len(history) + 1))],
            "exclude_history": bool(number % 2),
        }
        odd: list[MixedRequest] = [
            MixedRequest(GOOD, {"history": []}),
            MixedRequest(GOOD, {"history": [-1, *history[:3], 2**62]}),
            MixedRequest(REFUSED, {"history": history, "top_k": 0}),
            MixedRequest(LATE, {"history": history, "deadline_ms": 1}),
        ]
        requests.append(MixedRequest(GOOD, plain) if number % 5 else odd[number // 5 % len(odd)])
    return requests


async def _send(
    client: AsyncRecommender, request: MixedRequest, top_k: int
) -> tuple[str, Recommendation | None]:
    """The problem with how it ended, if any, and its answer, if there is one: `judged` says whether it is right."""
    try:
        answer = await client.recommend(**{"top_k": top_k, **request.arguments})
    except BadRequest as error:
        return "" if request.kind == REFUSED else str(error), None
    except Overloaded as error:
        return "" if request.kind == LATE and "deadline_ms" in str(error) else SHED, None
    except GenrecError as error:
        return f"{type(error).__name__}: {error}", None
    if request.kind == REFUSED:
        return "a bad request was answered", None
    return "", answer


async def _drive(
    server: RunningServer,
    requests: Sequence[MixedRequest],
    arrivals: traffic.Seconds,
    top_k: int,
    start: float,
) -> list[SoakedRequest]:
    events: list[SoakedRequest] = []
    bar = counting("soak", len(requests), "request", mininterval=1)
    async with AsyncRecommender(server.grpc_url) as grpc, AsyncRecommender(server.http_url, "http") as http:

        async def one(number: int, due: float) -> None:
            request = requests[number]
            problem, answer = await _send(http if number % 4 == 3 else grpc, request, top_k)
            done = time.monotonic() - start
            events.append(SoakedRequest(request.kind, due, done, problem, answer, request.excluded))
            bar.update()

        await open_loop(arrivals, start, one)
    bar.close()
    return events


def judged(artifact: Path, events: Sequence[SoakedRequest], top_k: int) -> list[SoakedRequest]:
    """The same, where an answer with wrong, equal or too few items is a problem too. Raises ArtifactError."""
    answers = [event.answer for event in events if event.answer is not None]
    known = iter(worth.with_catalogues(artifact, answers))

    def is_right(event: SoakedRequest) -> bool:
        return worth.is_right(worth.worth([next(known)], top_k, [event.excluded]))

    return [
        event if event.answer is None or is_right(event) else replace(event, problem=WRONG)
        for event in events
    ]


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Growth per second after the warm-up: the median over all pairs of samples (Theil and Sen).

    An allocator grows by steps; one step is no growth, many are.
    """
    late = [n for n, second in enumerate(at) if second >= WARM_UP * at[-1]]
    seconds, value = np.asarray(at, np.float64)[late], np.asarray(values, np.float64)[late]
    earlier, later = np.triu_indices(len(late), 1)
    return float(np.median((value[later] - value[earlier]) / (seconds[later] - seconds[earlier])))


def windows_of(events: Sequence[SoakedRequest], seconds: float) -> list[dict[str, Any]]:
    """Per tenth of the time: answers per second and latency of the good requests that were due in it, problems."""
    rows = []
    for number in range(WINDOWS):
        first, end = number * seconds / WINDOWS, (number + 1) * seconds / WINDOWS
        last = number == WINDOWS - 1  # the last request is due as the time is over
        due = [event for event in events if first <= event.due and (last or event.due < end)]
        latency = [
            1000 * (event.done - event.due) for event in due if event.kind == GOOD and not event.problem
        ]
        # What was refused as it must is none
        answered = [event for event in events if event.kind == GOOD or event.answer is not None]
        finished = sum(first <= event.done < end and not event.problem for event in answered)
        rows.append(
            {
                "from_s": round(first, 1),
                "rate": round(finished * WINDOWS / seconds, 1),
                "p50_ms": percentile(latency, 0.5),
                "p99_ms": percentile(latency, 0.99),
                "problems": sum(bool(event.problem) for event in due),
            }
        )
    return rows


def last_over_first(windows: Sequence[dict[str, Any]], name: str) -> float | None:
    """A figure of the last tenth over that of the first; None where one of both has none, or the first has 0."""
    first, last = windows[0][name], windows[-1][name]
    return round(last / first, 3) if first and last is not None else None


def soak(
    server: RunningServer, artifact: Path, histories: traffic.Histories, seconds: float, rate: float, *,
    top_k: int = 10, seed: int = 0,
) -> tuple[dict[str, Any], list[Sample], list[dict[str, Any]], list[SoakedRequest]]:  # fmt: skip
    """Load a running server: the figures, the samples, the windows, how every request ended."""
    arrivals = traffic.poisson(rate, int(rate * seconds), seed)
    restarts, start = server.restarts, time.monotonic() + 0.2
    with Watch(server, start) as watch:
        requests = mix(histories, len(arrivals), seed)
        events = asyncio.run(_drive(server, requests, arrivals, top_k, start))
    events = judged(artifact, events, top_k)
    samples, windows = watch.samples, windows_of(events, float(arrivals[-1]))
    at = [sample.at for sample in samples]
    growth = slope(at, [sample.total for sample in samples])
    problems = Counter(event.problem for event in events if event.problem)
    settled = [sample for sample in samples if sample.at >= WARM_UP * at[-1]]
    figures = {
        "seconds": round(at[-1], 1),
        "requests": len(events),
        "refused_as_they_must": sum(event.kind == REFUSED and not event.problem for event in events),
        "shed": problems.pop(SHED, 0),
        "errors": sum(problems.values()),
        "problems": dict(problems.most_common(5)),
        "restarts": server.restarts - restarts,
        "starved_s": round(max(sample.starved for sample in samples), 2),
        "memory_mb": round(samples[-1].total / 1e6, 1),
        "memory_growth_bytes_per_s": round(growth),
        "memory_growth_bytes_per_request": round(growth * at[-1] / len(events)),
        "memory_growth_bytes_per_s_of": {
            name: round(slope(at, [sample.memory[name] for sample in samples])) for name in samples[0].memory
        },
        "shm_mb": round(samples[-1].shm / 1e6, 1),
        "shm_growth_bytes": settled[-1].shm - settled[0].shm,
        "arena_rows_busy_max": max(sample.busy for sample in samples),
        "rate_last_over_first": last_over_first(windows, "rate"),
        "p99_ms_last_over_first": last_over_first(windows, "p99_ms"),
    }
    return figures, samples, windows, events


def worth_of(artifact: Path, events: Sequence[SoakedRequest], top_k: int = 10) -> worth.Worth:
    """What the answers among them are worth. Raises ArtifactError."""
    answered = [(event.answer, event.excluded) for event in events if event.answer is not None]
    answers, excluded = [answer for answer, _ in answered], [ids for _, ids in answered]
    return worth.worth_of(artifact, answers, top_k, excluded)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for people and one JSON object as the last line."""
    parser = report.arguments("soak", __doc__)
    parser.add_argument("artifact", type=Path, help="artifact folder to serve")
    parser.add_argument("--minutes", type=float, default=5.0)
    report.add_options(parser, rate=20.0, beam_width=128, top_k=10, seed=0)
    parser.add_argument("--plot", type=Path, default=Path("soak.png"), help="where the picture goes")
    a = parser.parse_args(argv)
    if a.minutes < LEAST_MINUTES:
        raise InputError(
            "minutes", f"is {a.minutes:g}", f"at least {LEAST_MINUTES:g}: growth is seen in some samples"
        )
    run = report.begin(a)
    histories = traffic.histories(a.artifact, 1000, a.seed)
    with running_server(a.artifact, beam_width=a.beam_width) as server:
        figures, samples, windows, events = soak(
            server, a.artifact, histories, 60 * a.minutes, a.rate, top_k=a.top_k, seed=a.seed
        )
    plot_soak(samples, windows, WARM_UP, a.plot)
    rows = [["-" if value is None else f"{value:.1f}" for value in each.values()] for each in windows]
    print(report.columns([*windows[0]], rows))
    report.show(figures)
    checked = worth_of(a.artifact, events, a.top_k)
    print(worth.line(checked))
    p99 = [each["p99_ms"] for each in windows if each["p99_ms"] is not None]
    spread = {"p99_ms_of_windows": turns.extremes(p99)[1:]} if p99 else {}
    run.publish({**figures, **checked._asdict()}, repeats=1, spread=spread)


if __name__ == "__main__":
    main()
