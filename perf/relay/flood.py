"""Do signals that no ranking follows harm those who rank? A real server, cascades with a flood beside them and without.

    genrec bench relay_flood [--tokens 2048] [--rate 8] [--flood 50] [--flood-tokens 4096]

Cascades come at --rate per second, as in `genrec bench relay`, and a tenth of their users leave: `inline` says nothing
ahead, `relay` sends a signal, too. The flood is signals at --flood per second, each of another user with a history of
--flood-tokens. The ways with and without it stand in turns. What became of the flood's signals is counted by outcome.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from clients.ranker import Ranker
from perf.kit import report, turns
from perf.relay import load
from perf.relay.bench import INLINE, RELAY, WAYS, servers_of, size_of
from perf.relay.load import RelayWay
from perf.relay.measure import GONE, Bench, Effort
from perf.relay.model import draw


@contextmanager
def flooded(url: str, rate: float, tokens: int) -> Iterator[Counter[str]]:
    """`rate` signals per second, each of a new user; yields how many came to which outcome."""
    history, _ = draw(tokens, 0)
    ended, outcomes = threading.Event(), Counter[str]()

    def keep_sending() -> None:
        with Ranker(url) as ranker:
            begun, sent = time.monotonic(), 0
            while not ended.wait(max(begun + sent / rate - time.monotonic(), 0)):
                outcomes[ranker.pre_infer(history, next(load.new_users)).outcome] += 1
                sent += 1

    thread = threading.Thread(target=keep_sending)
    thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        thread.join()


def measure(url: str, bench: Bench, a: Any) -> dict[str, Any]:
    """Way -> P99 of rankings of each round, and what became of the flood's signals."""
    told = Counter[str]()

    def alone(way: RelayWay) -> float | None:
        return bench.load(way, a.tokens, a.rate, GONE)[0].rank_p99_ms

    def in_a_flood(way: RelayWay) -> float | None:
        with flooded(url, a.flood, a.flood_tokens) as outcomes:
            p99 = alone(way)
        told.update(outcomes)
        return p99

    arms = {
        name: partial(run, WAYS[way])
        for way in (INLINE, RELAY)
        for name, run in ((way, alone), (f"{way}, flooded", in_a_flood))
    }
    p99 = turns.in_turns(arms, a.rounds, warm_ups=1, label="rankings")
    return {"p99_ms": p99, "signals": dict(told)}


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
    run = report.begin(a)
    with servers_of(a.folder, size_of(a.model), [WAYS[RELAY]]) as servers:
        bench = Bench(servers, Effort(0.0, a.requests, 0, 24), a.seed)
        found = measure(servers["relay"].grpc_url, bench, a)
    of = {way: turns.extremes(values) for way, values in found["p99_ms"].items()}
    rows = [[way, *(f"{each:.1f}" for each in spread)] for way, spread in of.items()]
    print(report.columns(["P99 of rankings, ms", "median", "least", "most"], rows))
    print("the flood's signals:", ", ".join(f"{count} {name}" for name, count in found["signals"].items()))
    figures = {
        "p99_ms": {way: spread.median for way, spread in of.items()}, "signals": found["signals"],
        "flooded_over_alone": {way: of[f"{way}, flooded"].median / of[way].median for way in (INLINE, RELAY)},
        "wrong_answers": bench.wrong, "points": bench.points,
    }  # fmt: skip
    run.publish(figures, repeats=a.rounds, spread={way: each[1:] for way, each in of.items()})


if __name__ == "__main__":
    main()
