"""What is a prefix computed one stage ahead worth? Real servers, open-loop cascades, the paper's budgets (RelayGR).

    genrec bench relay [--seconds 12] [--lengths 1024,2048,4096,8192] [--ways 'inline; relay'] [--model 128-2]

A cascade is a retrieval of 85 ms that happens elsewhere (the load generator sleeps), then a ranking of 100
candidates. Budgets: 50 ms for the ranking and 135 ms for all at P99, and 99.9 % of the requests answered. `inline`
says nothing ahead; `relay` sends the signal when the retrieval begins; in `relay, returning` half of the requests are
by users who came before in the same load, and whose prefix is in the pool; in `relay, returning from disk` the pool
has room for a few users, and the second tier for all; `two servers` have users fixed to one, and `two servers, any`
have not. Where our own generator retrieves, the budget is 135 ms for all: `shared backbone` is one call of
`recommend_and_rank`, `shared backbone, two calls` are `recommend` and then `rank`, in `two models` the ranker has
layers of its own, and `two models, relay` sends the signal. The model is mock: the largest of a few sizes that ranks
--fit tokens inline within 80 % of the budget on this machine. The ratios are at the length whose inline ranking takes
70 % of it; a way that held nothing there counts with the least rate that it failed. Rates and lengths are searched
by doubling and bisection, the ways in turns. Every answer is compared with the inline one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.launcher import RunningServer, running_server
from genrec.errors import InputError
from perf.kit import report
from perf.relay.figures import (
    ANY,
    DISK,
    FIXED,
    INLINE,
    RELAY,
    RETURNING,
    SHARED,
    SHARED_CALLS,
    TWO,
    TWO_RELAY,
    figures_of,
    tables,
)  # fmt: skip
from perf.relay.load import RANK_MS, RETRIEVED, RelayWay
from perf.relay.measure import LEAST_RATE, MIXTURE, SHORTEST, Bench, Effort, alone_ms, length_at
from perf.relay.model import LONGEST, fitting, made

WAYS = {
    way.name: way
    for way in (
        RelayWay(INLINE, signal=False),
        RelayWay(RELAY),
        RelayWay(RETURNING, returning=0.5),
        RelayWay(DISK, ("disk",), returning=0.5),
        RelayWay(FIXED, ("relay", "other")),
        RelayWay(ANY, ("relay", "other"), affinity=False),
        RelayWay(SHARED, retrieval="shared"),
        RelayWay(SHARED_CALLS, signal=False, retrieval="recommend"),
        RelayWay(TWO, ("own backbone",), signal=False, retrieval="recommend"),
        RelayWay(TWO_RELAY, ("own backbone",), retrieval="recommend"),
    )
}
BY_LENGTH = (INLINE, RELAY, RETURNING)  # these at every length, the others at that of the ratios
FEW_MB = 96  # of users' KV where the second tier has the rest
FITS, CALIBRATED = 0.8, 0.7  # of the ranking's budget
ENSEMBLES = ("rank", "pre_infer", "recommend", "recommend_and_rank")


def main(argv: Sequence[str] | None = None) -> None:
    """Print tables for people and one JSON object as the last line."""
    parser = report.arguments("relay", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/mock-relay"), help="of the models")
    parser.add_argument("--model", help="hidden size and layers, e.g. 128-2; default: what fits this machine")
    parser.add_argument(
        "--reach", type=int, default=0, help="a user's newest tokens that scores read; 0: all"
    )
    parser.add_argument("--fit", type=int, default=3072, help="tokens that this model ranks inline in time")
    parser.add_argument(
        "--lengths", default="1024,2048,4096,6144,8192", help="tokens; a mixture comes on top"
    )
    parser.add_argument("--ways", default="", help=f"default: {'; '.join(WAYS)}")
    parser.add_argument("--rate", type=float, default=5.0, help="at which the longest history is sought")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a load")
    parser.add_argument("--least", type=int, default=100, help="requests of a load, however long it takes")
    parser.add_argument("--measurements", type=int, default=7, help="of a search")
    parser.add_argument("--rounds", type=int, default=2, help="of the searches at the length of the ratios")
    parser.add_argument("--repeats", type=int, default=15, help="of a ranking alone")
    parser.add_argument("--asks", type=int, default=24, help="distinct histories of a length")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args(argv)
    ways, lengths, asked = ways_of(a.ways), lengths_of(a.lengths), a.model and size_of(a.model)
    this = report.begin(a)
    size = asked or fitting(a.folder, a.fit, FITS * RANK_MS, a.reach)
    print(f"model of hidden size {size[0]} and {size[1]} layers", flush=True)
    with servers_of(a.folder, size, ways, a.reach) as servers:
        figures, spread = measure(servers, ways, lengths, a)
    this.publish({"model": "{}-{}".format(*size), **figures}, repeats=a.rounds, spread=spread)


def ways_of(text: str) -> list[RelayWay]:
    """The ways by their names. Raises InputError."""
    names = [name.strip() for name in text.split(";")] if text else list(WAYS)
    if unknown := [name for name in names if name not in WAYS]:
        raise InputError("ways", f"names {', '.join(unknown)}", "; ".join(WAYS))
    return [WAYS[name] for name in names]


def lengths_of(text: str) -> list[int]:
    """Tokens. Raises InputError."""
    try:
        lengths = sorted(int(each) for each in text.split(","))
    except ValueError as error:
        raise InputError("lengths", f"is {text!r}", "tokens with commas between") from error
    if lengths[0] < SHORTEST or lengths[-1] >= LONGEST:
        raise InputError("lengths", f"is {text!r}", f"{SHORTEST} to {LONGEST - 1} tokens")
    return lengths


def size_of(text: str) -> tuple[int, int]:
    """Hidden size and layers. Raises InputError."""
    hidden, _, layers = text.partition("-")
    if not (hidden.isdecimal() and layers.isdecimal()) or int(hidden) % 32 or not int(hidden) * int(layers):
        raise InputError("model", f"is {text!r}", "hidden size, a multiple of 32, and layers, as 128-2")
    return int(hidden), int(layers)


@contextmanager
def servers_of(
    folder: Path, size: tuple[int, int], ways: Sequence[RelayWay], reach: int = 0
) -> Iterator[dict[str, RunningServer]]:
    """The servers that these ways need, by name."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                running_server(
                    made(folder, *size, name != "own backbone", reach), ensembles=ENSEMBLES,
                    beam_width=RETRIEVED, probe_every_s=300.0,
                    pool_fill="none",  # core time is to be that of requests: hence few probes too
                    **({"pool_user_mb": FEW_MB, "pool_disk": str(folder.absolute())} if name == "disk" else {}),
                )
            )
            for name in dict.fromkeys(name for way in ways for name in way.servers)
        }  # fmt: skip


def measure(
    servers: dict[str, RunningServer], ways: Sequence[RelayWay], lengths: list[int], a: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything, and the spread of the ratios."""
    any_url = next(iter(servers.values())).grpc_url
    alone = alone_ms(any_url, lengths, a.repeats)
    length = length_at(alone, CALIBRATED * RANK_MS)
    inline_ms = alone_ms(any_url, [length], a.repeats)[length]["inline"]
    print(f"an inline ranking of {length} tokens takes {inline_ms:.1f} ms", flush=True)
    bench = Bench(servers, Effort(a.seconds, a.least, a.measurements, a.asks), a.seed)
    first = 0.25e3 / inline_ms  # a quarter of what one server could do
    rounds = [bench.highest_rates(ways, [length], first) for _ in range(a.rounds)]
    foreign = [way for way in ways if way.name in BY_LENGTH]
    rates = bench.highest_rates(foreign, [*lengths, MIXTURE], first)
    longest = bench.longest(foreign, a.rate, length)
    clients = bench.most_clients(foreign, length, first)
    new = [way for way in foreign if way.name != RETURNING]
    # What a request costs does not hang on the budgets, so neither does its rate: a half of the first.
    spent = bench.spent(new, [length, MIXTURE], max(first / 2, LEAST_RATE), a.rounds)
    figures, spread = figures_of(length, rounds, rates, longest, clients, spent, alone)
    print(tables(figures))
    about = {"length": length, "inline_ms": inline_ms, "wrong_answers": bench.wrong, "points": bench.points}
    return figures | about, spread


if __name__ == "__main__":
    main()
