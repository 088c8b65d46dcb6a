"""How long is a server away when one of its processes is killed, or stopped? And is every answer right?

    genrec bench recovery artifacts/ml-100k

Under an open-loop load over all ensembles that recommend (no ranker is served), every process of a server of its own is
killed (SIGKILL), and then every one stopped (SIGSTOP), in turn: tritonserver and each model's. What counts is what
clients see: for each ensemble, the time from the signal to the first right answer to a request sent after it, if one
failed; an ensemble of which nothing failed was never away. Afterwards the server is ended, and what it left is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from clients.aio import AsyncRecommender
from deploy import tritonserver
from deploy.launcher import RunningServer, running_server
from genrec import leftovers
from genrec.errors import GenrecError
from perf.kit import report, traffic

LONGEST_S = 120.0  # that a server may be away
CALM_S = 2.0  # of undisturbed answers between two signals
HISTORIES = 20  # that are sent in turn
TIMEOUT_S = 10.0  # of a request


class SteadyLoad:
    """Requests at a fixed rate, whatever comes back, and how long each ensemble was away since `disturb`."""

    def __init__(self, clients: dict[str, AsyncRecommender], histories: traffic.Histories) -> None:
        self._clients, self._histories = clients, histories
        self._expected: dict[tuple[str, int], Any] = {}
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self._since = 0.0
        self._failed: dict[str, float] = {}  # by ensemble, when the last failed request was sent
        # When the first right one after that was sent, and answered
        self._right: dict[str, tuple[float, float]] = {}
        self._under_way: list[float] = []  # when those were sent that have not ended

    async def learn(self) -> None:
        """What undisturbed answers are, of every history and ensemble."""
        for name, client in self._clients.items():
            for place, history in enumerate(self._histories):
                self._expected[name, place] = (await client.recommend(history)).item_ids

    async def run(self, rate: float, over: asyncio.Event) -> None:
        """Send to the ensembles in turn until it is over, then wait for what is under way."""
        asked: set[asyncio.Task[None]] = set()
        for place, name in itertools.cycle(itertools.product(range(len(self._histories)), self._clients)):
            if over.is_set():
                break
            task = asyncio.create_task(self._ask(name, place))
            asked.add(task)
            task.add_done_callback(asked.discard)
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*asked)

    async def _ask(self, name: str, place: int) -> None:
        sent = time.monotonic()
        self._under_way.append(sent)
        try:
            await self._answered(name, place, sent)
        finally:
            self._under_way.remove(sent)

    async def _answered(self, name: str, place: int, sent: float) -> None:
        try:
            found = (await self._clients[name].recommend(self._histories[place])).item_ids
        except GenrecError as error:
            self.outcomes[type(error).__name__] += 1
            self._failed[name] = max(sent, self._failed.get(name, 0.0))
            if self._right.get(name, (0.0, 0.0))[0] < self._failed[name]:
                self._right.pop(name, None)
            return
        if not np.array_equal(found, self._expected[name, place]):
            self.outcomes["wrong"] += 1
            self.wrong += 1
            return
        self.outcomes["right"] += 1
        if sent > max(self._since, self._failed.get(name, 0.0)):
            self._right.setdefault(name, (sent, time.monotonic()))

    def disturb(self) -> None:
        """From now on, who fails?"""
        self._failed.clear()
        self._right.clear()
        self._since = time.monotonic()

    @property
    def settled(self) -> bool:
        """Whether every ensemble has answered a request sent after its last failure."""
        return all(name in self._right for name in self._clients)

    def ended(self, moment: float) -> bool:
        """Whether all requests that were sent until then have."""
        return min(self._under_way, default=moment + 1) > moment

    def away(self) -> dict[str, float]:
        """Seconds until the ensembles that failed answered again."""
        return {name: self._right[name][1] - self._since for name in self._failed if name in self._right}


def processes(server: RunningServer) -> dict[str, int]:
    """Pid of the server, and of every model's process."""
    stubs = {tritonserver.model_of(pid): pid for pid in tritonserver.living_stubs(server.pid)}
    return {"tritonserver": server.pid, **dict(sorted(stubs.items()))}


async def _strike(server: RunningServer, name: str, number: int, load: SteadyLoad) -> dict[str, float]:
    """Signal one process and wait until the server was mended and all ensembles answer, and still do after a calm."""
    mended = server.restarts + 1
    load.disturb()
    os.kill(processes(server)[name], number)
    deadline = time.monotonic() + LONGEST_S
    while True:
        while server.restarts < mended or not load.settled:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: not mended within {LONGEST_S:.0f} s of signal {number}")
            await asyncio.sleep(0.02)
        calm = time.monotonic()
        await asyncio.sleep(CALM_S)
        # One that still hangs may fail yet, and would be told of the next process
        if load.settled and load.ended(calm):
            return load.away()


async def disturb(
    server: RunningServer, histories: traffic.Histories, rate: float
) -> tuple[list[dict[str, Any]], SteadyLoad, set[int]]:
    """A row for every process and signal; the load with what came of it; the pids of all servers there were.

    Over HTTP: with gRPC its pauses between attempts to connect would be measured too.
    """
    rows, sessions = [], {server.pid}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(
                AsyncRecommender(server.http_url, "http", model=name, timeout_s=TIMEOUT_S)
            )
            for name in server.ensembles
        }
        load, over = SteadyLoad(clients, histories), asyncio.Event()
        await load.learn()
        running = asyncio.create_task(load.run(rate, over))
        try:
            for number in (signal.SIGKILL, signal.SIGSTOP):
                for name in processes(server):
                    away = await _strike(server, name, number, load)
                    sessions.add(server.pid)
                    worst, who = max(away.values(), default=0.0), sorted(away)
                    row = {"process": name, "signal": number.name, "away_s": worst, "ensembles": who}
                    rows.append(row)
                    print(
                        f"{name:>18} {number.name:>8} {worst:6.1f} s  {', '.join(who) or 'none'}", flush=True
                    )
        finally:
            over.set()
            await running
    return rows, load, sessions


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for people and one JSON object as the last line."""
    parser = report.arguments("recovery", __doc__)
    parser.add_argument("artifact", type=Path, help="e.g. artifacts/ml-100k")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second, over all ensembles")
    parser.add_argument("--beam-width", type=int, default=128)
    a = parser.parse_args(argv)
    run = report.begin(a)
    histories = traffic.histories(a.artifact, HISTORIES)
    print(f"{'process':>18} {'signal':>8}    away  of which ensembles a request failed")
    begun = time.monotonic()
    with running_server(a.artifact, beam_width=a.beam_width, ranker="none") as server:
        start_s = time.monotonic() - begun
        prefix = server.supervisor.prefix
        rows, load, sessions = asyncio.run(disturb(server, histories, a.rate))
    orphans = [m for pid in sessions for m in tritonserver.members(pid) if m.state not in "ZX"]
    worst = {
        name: max(row["away_s"] for row in rows if row["signal"] == name) for name in ("SIGKILL", "SIGSTOP")
    }
    figures = {
        "worst_recovery_s": round(worst["SIGKILL"], 2),
        "worst_stopped_s": round(worst["SIGSTOP"], 2),
        "wrong_answers": load.wrong,
        "orphans": len(orphans),
        "left_in_shm": len(leftovers.files_of(prefix)),
        "start_s": round(start_s, 2),
        "answers": dict(load.outcomes),
    }
    report.show(figures)
    run.publish({**figures, "rows": rows}, repeats=1)


if __name__ == "__main__":
    main()
