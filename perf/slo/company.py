"""How long should a free stream wait for company? The same arrivals to schedulers that wait for other times.

    genrec bench company artifacts/ml-100k

In one process, without Triton: prompts arrive as a Poisson process at shares of the capacity, and `genrec.schedule`
batches them for the engine. What waits while a batch runs has
company without waiting, so a wait can only gain where the stream is free, and there it costs what it waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.errors import GenrecError
from genrec.settings import Settings
from genrec.steps import Answer
from genrec.steps.encode_history import EncodeHistory
from genrec.steps.generate import Generate
from perf.kit import report, traffic, turns

WAITS_MS = (0.0, 0.5, 2.0)
SHARES = (0.1, 0.4, 0.7, 0.9)


def drive(step: Generate, prompts: list[dict[str, Any]], arrivals: traffic.Seconds) -> list[float]:
    """Seconds from a prompt's arrival to its answer. Raises what a prompt is answered with that is none."""
    taken, left, done = [0.0] * len(prompts), [len(prompts)], threading.Event()
    problems: list[GenrecError] = []

    def answered(place: int, due: float, answer: Answer) -> None:
        if isinstance(answer, GenrecError):  # on another thread, where nobody would hear of it
            problems.append(answer)
            done.set()
            return
        taken[place] = time.perf_counter() - due
        left[0] -= 1  # one stream: only its thread is here
        if not left[0]:
            done.set()

    begun = time.perf_counter()
    for place, (prompt, arrival) in enumerate(zip(prompts, arrivals, strict=True)):
        due = begun + arrival
        time.sleep(max(due - time.perf_counter(), 0.0))
        step.submit(prompt, partial(answered, place, due))
    done.wait()
    if problems:
        raise problems[0]
    return taken


def measure(step: Generate, prompts: list[dict[str, Any]], rate: float, seed: int) -> tuple[float, float]:
    """P50 and P99 in ms at a rate."""
    taken = drive(step, prompts, traffic.poisson(rate, len(prompts), seed))
    return 1000 * float(np.median(taken)), 1000 * float(np.percentile(taken, 99))


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("company", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--prompts", type=int, default=400, help="of a wait, share and round")
    report.add_options(parser, beam_width=128, rounds=5)
    a = parser.parse_args(argv)
    run = report.begin(a)
    settings = Settings(a.artifact, a.artifact / "no-arena", a.beam_width)
    prompts = prompts_of(settings, a.prompts)
    steps = {f"{wait:g} ms": Generate(settings, wait / 1000) for wait in WAITS_MS}
    for step in steps.values():
        step.run(prompts)  # none meets its shapes while it is timed
    most = len(prompts) / turns.timed(lambda: next(iter(steps.values())).run(prompts))[0]
    print(f"capacity: {most:.0f} prompts a second")
    found, rows = {}, []
    for share in SHARES:
        arms = {
            name: partial(measure, step, prompts, share * most, a.prompts) for name, step in steps.items()
        }
        given = turns.in_turns(arms, a.rounds, label=f"{share:.0%} of capacity")
        for name, rounds in given.items():
            p50, p99 = (turns.extremes([each[n] for each in rounds]) for n in (0, 1))
            found[f"{share:.0%}, {name}"] = {"p50_ms": p50.median, "p99_ms": p99.median, "p99_ends": p99[1:]}
            rows.append((f"{share:.0%} of capacity, {name}", f"{p50.median:.2f}", f"{p99.median:.2f}"))
    for step in steps.values():
        step.close()
    print(report.columns(("", "P50 ms", "P99 ms"), rows))
    spread = {name: each.pop("p99_ends") for name, each in found.items()}
    run.publish({"capacity": most, "waits": found}, repeats=a.rounds, spread=spread)


def prompts_of(settings: Settings, count: int) -> list[dict[str, Any]]:
    """What `encode_history` makes of the artifact's histories."""
    encode = EncodeHistory(settings)
    histories = traffic.histories(settings.artifact, count)
    requests = [{"history": each[None], "top_k": np.array([[10]], np.int32)} for each in histories]
    return [answer for answer in encode.run(requests) if isinstance(answer, dict)]


if __name__ == "__main__":
    main()
