"""Do signals that no ranking follows harm those who rank? A real server, cascades with a flood beside them and without.

    genrec bench relay_flood [--tokens 2048] [--rate 8] [--flood 50] [--flood-tokens 4096]

Cascades come at --rate per second, as in `genrec bench relay`, and a tenth of their users leave: `inline` says nothing
ahead, `relay` sends a signal, too. The flood is signals at --flood per second, each of another user with a history of
--flood-tokens. The ways with and without it stand in turns. What became of the flood's signals is counted by outcome,
errors too, and told with how many a second were sent.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from clients.ranker import Ranker
from genrec.errors import GenrecError, InputError
from perf.kit import report, turns
from perf.relay import load
from perf.relay.bench import INLINE, RELAY, WAYS, servers_of, size_of
from perf.relay.load import RelayWay
from perf.relay.measure import GONE, Bench, Effort
from perf.relay.model import draw


class FloodTurn(NamedTuple):
    """P99 of rankings, inf where none was answered; what became of the signals beside them, and how many a second."""

    p99_ms: float
    signals: Counter[str]
    rate: float


@contextmanager
def flooded(url: str, rate: float, tokens: int) -> Iterator[Counter[str]]:
    """`rate` signals per second, each of a new user; yields how many came to which outcome, or to which error."""
    history, _ = draw(tokens, 0)
    ended, outcomes = threading.Event(), Counter[str]()

    def keep_sending() -> None:
        with Ranker(url) as ranker:
            begun, sent = time.monotonic(), 0
            while not ended.wait(max(begun + sent / rate - time.monotonic(), 0)):
                try:
                    outcomes[ranker.pre_infer(history, next(load.new_users)).outcome] += 1
                except GenrecError as error:
                    outcomes[type(error).__name__] += 1
                sent += 1

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(keep_sending)
        try:
            yield outcomes
        finally:
            ended.set()
        sending.result()  # what else went wrong there


def measure(url: str, bench: Bench, a: Any) -> dict[str, list[FloodTurn]]:
    """Way -> what each round came to."""

    def alone(way: RelayWay) -> FloodTurn:
        p99 = bench.load(way, a.tokens, a.rate, GONE)[0].rank_p99_ms
        return FloodTurn(math.inf if p99 is None else p99, Counter(), 0.0)

    def in_a_flood(way: RelayWay) -> FloodTurn:
        begun = time.monotonic()
        with flooded(url, a.flood, a.flood_tokens) as outcomes:
            p99 = alone(way).p99_ms
            seconds = time.monotonic() - begun
        return FloodTurn(p99, outcomes, outcomes.total() / seconds)

    arms = {
        name: partial(run, WAYS[way])
        for way in (INLINE, RELAY)
        for name, run in ((way, alone), (f"{way}, flooded", in_a_flood))
    }
    return turns.in_turns(arms, a.rounds, warm_ups=1, label="rankings")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table and, last, one JSON object."""
    parser = report.arguments("relay_flood", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/mock-relay"), help="of the model")
    parser.add_argument("--model", default="128-2", help="hidden size and layers")
    parser.add_argument("--tokens", type=int, default=2048, help="of those who rank")
    parser.add_argument("--flood-tokens", type=int, default=4096)
    parser.add_argument("--flood", type=float, default=50.0, help="signals per second")
    report.add_options(parser, rate=8.0, rounds=5, requests=100, seed=0)
    a = parser.parse_args(argv)
    if not a.flood > 0:
        raise InputError("flood", f"is {a.flood:g}", "more than 0 signals per second")
    run = report.begin(a)
    with servers_of(a.folder, size_of(a.model), [WAYS[RELAY]]) as servers:
        bench = Bench(servers, Effort(0.0, a.requests, 0, 24), a.seed)
        found = measure(servers["relay"].grpc_url, bench, a)
    of = {way: turns.extremes([turn.p99_ms for turn in given]) for way, given in found.items()}
    signals = sum((turn.signals for given in found.values() for turn in given), Counter[str]())
    rates = [turn.rate for given in found.values() for turn in given if turn.signals]
    rate = turns.extremes(rates).median if rates else 0.0
    rows = [[way, *(f"{each:.1f}" for each in spread)] for way, spread in of.items()]
    print(report.columns(["P99 of rankings, ms", "median", "least", "most"], rows))
    print(
        f"the flood's signals, {rate:.1f} a second:", ", ".join(f"{n} {name}" for name, n in signals.items())
    )
    figures = {
        "p99_ms": {way: spread.median for way, spread in of.items()}, "signals": dict(signals),
        "signals_per_s": rate,
        "flooded_over_alone": {way: of[f"{way}, flooded"].median / of[way].median for way in (INLINE, RELAY)},
        "wrong_answers": bench.wrong, "points": bench.points,
    }  # fmt: skip
    run.publish(figures, repeats=a.rounds, spread={way: each[1:] for way, each in of.items()})


if __name__ == "__main__":
    main()
