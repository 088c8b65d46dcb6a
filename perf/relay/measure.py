"""The measurements of `genrec bench relay`: rates, lengths, compute and latencies, the ways in turns."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from clients.ranker import Ranker
from deploy import tritonserver
from deploy.launcher import RunningServer
from deploy.probe import ask
from genrec.process import stat_of
from perf.kit import traffic, turns
from perf.relay import load
from perf.relay.load import Asked, Cascaded, LoadPoint, RelayWay
from perf.relay.model import LEVELS, LONGEST, draw
from perf.relay.search import LargestHeld, largest_held

MIXTURE = "mixture"  # of lengths, log-normal: median 1,500 tokens, sigma 0.8
SHORTEST = 96  # tokens
LEAST_RATE = 0.5  # requests/s: what does not hold there holds nowhere
GONE = 0.1
MOST_CLIENTS = 256
TOLD_S = 2.0  # processes tell the server once a second what they counted
TOLD_WITHIN_S = 60.0
COMPUTED = re.compile(r'genrec_pre_inferred_tokens_total|genrec_rank_tokens_total\{.*kind="computed"')
Servers = Mapping[str, RunningServer]


class Spent(NamedTuple):
    """Per request that came: what the servers' processes used of the cores, and tokens that they computed."""

    core_ms: float
    tokens: float


class Rate(NamedTuple):
    """The highest rate that held, requests/s, 0 for none, and the least that was tried and did not."""

    held: float
    failed: float


class Effort(NamedTuple):
    """How much is measured."""

    seconds: float  # of a load
    least: int  # requests of a load
    measurements: int  # of a search
    asks: int  # distinct histories of a length


class Bench:
    """Loads on servers that run, and everything they came to."""

    def __init__(self, servers: Servers, effort: Effort, seed: int) -> None:
        self._servers, self._effort, self._seed = servers, effort, seed
        self._asks: dict[tuple[str, str, str], list[Asked]] = {}
        self._loads: Counter[str] = Counter()
        self.points: list[dict[str, Any]] = []

    @property
    def wrong(self) -> int:
        """Answers that differ from the inline ones."""
        return sum(point["wrong"] for point in self.points)

    def asks(self, way: RelayWay, length: float | str) -> list[Asked]:
        """Requests of this length in tokens, or of the mixture, with their inline answers; learnt once."""
        own = "foreign" if way.retrieval == "foreign" else "recommend"
        key = (way.servers[0], own, str(length))
        if key not in self._asks:
            tokens = lengths_of(length, self._effort.asks, self._seed)
            self._asks[key] = load.asks_of(self._servers[way.servers[0]].grpc_url, tokens, own)
        return self._asks[key]

    def load(
        self, way: RelayWay, length: float | str, rate: float, gone: float = 0.0, clients: int = 0
    ) -> tuple[LoadPoint, list[Cascaded]]:
        """Poisson arrivals at `rate` per second, or so many clients that ask again; kept in `points`."""
        asks = self.asks(way, length)
        count = max(round(rate * self._effort.seconds), self._effort.least)
        self._loads[way.name] += 1  # the n-th load of every way has the same gaps
        arrivals = traffic.poisson(rate, count, self._seed + self._loads[way.name])
        found = load.run(
            way, [self._servers[name].grpc_url for name in way.servers], asks, arrivals, gone=gone, clients=clients
        )  # fmt: skip
        point = load.point_of(way, found)
        about = {"way": way.name, "length": length, "rate": rate, "gone": gone, "clients": clients}
        self.points.append({**about, **point._asdict()})
        return point, found

    def _holds(self, way: RelayWay, length: float | str, rate: float, clients: int = 0) -> bool:
        """One that is not held is tried once more: of a hundred requests two late ones are enough, and a machine that
        is shared can make them late. What is beyond a way's capacity fails twice.
        """
        return any(self.load(way, length, rate, clients=clients)[0].held for _ in range(2))

    def _holds_length(self, way: RelayWay, rate: float, tokens: float) -> bool:
        return self._holds(way, round(tokens), rate)

    def highest_rates(
        self, ways: Iterable[RelayWay], lengths: Iterable[float | str], first: float
    ) -> dict[tuple[str, str], Rate]:
        """(way, length) -> the rate within the budgets, by searches in turns that begin at `first`."""
        searches = {
            (way.name, str(length)): (
                LargestHeld(first, LEAST_RATE, 2000.0), partial(self._holds, way, length)
            )
            for length in lengths
            for way in ways
        }  # fmt: skip
        largest_held(searches, self._effort.measurements, "highest rates")
        return {of: Rate(search.held, search.failed) for of, (search, _) in searches.items()}

    def longest(self, ways: Iterable[RelayWay], rate: float, first: float) -> dict[str, float]:
        """Way -> tokens of the longest history within the budgets at `rate`."""
        searches = {
            way.name: (LargestHeld(first, SHORTEST, LONGEST - 1), partial(self._holds_length, way, rate))
            for way in ways
        }
        return largest_held(searches, self._effort.measurements, "longest histories")

    def most_clients(self, ways: Iterable[RelayWay], length: float, rate: float) -> dict[str, float]:
        """Way -> how many clients, each of whom asks again after a pause, are answered within the budgets.

        `rate` says only how many requests make a load.
        """

        @cache
        def holds(way: RelayWay, clients: int) -> bool:
            return self._holds(way, length, rate, clients)

        searches = {
            way.name: (
                LargestHeld(1, 1, MOST_CLIENTS), lambda clients, way=way: holds(way, int(clients))
            )
            for way in ways
        }  # fmt: skip
        found = largest_held(searches, self._effort.measurements, "clients at once")
        return {way: float(int(clients)) for way, clients in found.items()}

    def spent(
        self, ways: Sequence[RelayWay], lengths: Sequence[float | str], rate: float, rounds: int
    ) -> dict[tuple[str, str], list[Spent]]:
        """(way, length) -> what requests cost at each turn, while GONE of the users leave.

        A turn before them meets the candidates, whose entries are there from then on.
        """

        def measured(way: RelayWay, length: float | str) -> Spent:
            computed, used = self._computed(way), self._core_ms(way)
            _, found = self.load(way, length, rate, GONE)
            used, computed = self._core_ms(way) - used, self._computed(way) - computed
            came = len(found) + load.WARM_UP  # those before the load cost as much
            return Spent(used / came, computed / came)

        arms = {(way.name, str(length)): partial(measured, way, length) for length in lengths for way in ways}
        return turns.in_turns(arms, rounds, warm_ups=1, label="compute")

    def _core_ms(self, way: RelayWay) -> float:
        """Of a way's servers so far."""
        return 1e3 * sum(core_seconds(self._servers[name].pid) for name in way.servers)

    def _computed(self, way: RelayWay) -> float:
        """Tokens, by a way's servers so far; the last of them are told a second later."""
        time.sleep(TOLD_S)
        return sum(computed_tokens(self._servers[name].metrics_url) for name in way.servers)


def lengths_of(length: float | str, count: int, seed: int) -> list[int]:
    """Tokens of `count` histories: all the same, or drawn from the mixture."""
    if length != MIXTURE:
        return [int(length)] * count
    normal = np.random.default_rng(seed).standard_normal(count)
    return np.clip(1500 * np.exp(0.8 * normal), SHORTEST, LONGEST - 1).astype(int).tolist()


def core_seconds(session: int) -> float:
    """What the processes of a session have used of the cores so far."""
    ticks = 0
    for member in tritonserver.members(session):
        try:
            _, fields = stat_of(member.pid)
        except OSError:
            continue  # it has just ended
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def computed_tokens(url: str) -> float:
    """Tokens that rankings and pre-inferences of the server with this metrics' host:port have computed so far."""
    with ask(f"http://{url}/metrics", timeout=TOLD_WITHIN_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if COMPUTED.match(line))


def alone_ms(url: str, lengths: Sequence[int], repeats: int) -> dict[int, dict[str, float]]:
    """Tokens -> median ms of a ranking alone on the server: `inline`, and `ready` with the user's prefix there."""
    found = {}
    with Ranker(url) as ranker:
        for tokens in lengths:
            taken: dict[str, list[float]] = {"inline": [], "ready": []}
            history, candidates = draw(tokens, 1)
            for number in range(repeats + 1):
                user = next(load.new_users)
                for kind in taken:
                    begun = time.perf_counter()
                    answer = ranker.rank(history, candidates, len(candidates), user_id=user)
                    if number:  # the first meets the shape
                        taken[kind].append(1e3 * (time.perf_counter() - begun))
                assert answer.user_reused == len(history) * LEVELS
            found[tokens] = {kind: median(ms) for kind, ms in taken.items()}
    return found


def length_at(alone: Mapping[int, Mapping[str, float]], wanted_ms: float) -> int:
    """Tokens at which an inline ranking takes so long, on the line through the measured ones; within their ends."""
    tokens = sorted(alone)
    found = np.interp(wanted_ms, [alone[each]["inline"] for each in tokens], tokens)
    return round(float(found) / LEVELS) * LEVELS
