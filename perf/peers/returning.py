"""Users who come again, ours beside what people use today with a prefix cache: the same machine, weights and histories.

    genrec bench returning_peers [--peers openvino-genai,vllm] [--prompts 255,990] [--beam-width 128]

Every visit of a user has two items more than the one before it. Peers find what they have of a prompt by its tokens, in
blocks; we are asked through Triton and find it by the user, who is named. All take turns, one request at a time, and
answer as many items as there are beams. A turn's users are nobody else's. What a first visit takes stands beside: there
is nothing to go on behind then.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.recommender import Recommender
from clients.wire import Recommendation
from genrec.cores import usable_cores
from genrec.errors import InputError
from perf.kit import endpoints, report, worth
from perf.kit.turns import extremes, interleaved, timed
from perf.peers.folder import LONGEST, SHAPES, PeerModel
from perf.peers.ours import NAME
from perf.peers.peer import Deadline
from perf.peers.refusal import Refusal
from perf.peers.table import PEERS, make_peer

MORE = 2  # items of a history at every visit
LIMIT_S = 120.0  # of a request to a peer
FIRST, LATER = "first", "later"
# The user, and his history as catalogue rows int64[n] -> seconds until he is answered.
Ask = Callable[[int, NDArray[np.int64]], float]


def visits_of(ask: Ask, histories: NDArray[np.int64], visits: int, first_user: int) -> dict[str, list[float]]:
    """Seconds of first and of later visits. histories int64[users, n + MORE * (visits - 1)], all of a last visit."""
    took: dict[str, list[float]] = {FIRST: [], LATER: []}
    for visit in range(visits):
        length = histories.shape[1] - MORE * (visits - 1 - visit)
        for user, history in enumerate(histories, first_user):
            took[LATER if visit else FIRST].append(ask(user, history[:length]))
    return took


@contextmanager
def ours(model: PeerModel, width: int, threads: int, answers: list[Recommendation]) -> Iterator[Ask]:
    """A server of ours, whose answers are kept."""
    with (
        endpoints.endpoint(model.artifact, beam_width=width, threads=threads) as server,
        Recommender(server.grpc_url) as client,
    ):

        def ask(user: int, history: NDArray[np.int64]) -> float:
            items = model.catalogue.item_ids[history]
            seconds, answer = timed(lambda: client.recommend(items, width, user_id=user))
            answers.append(answer)
            return seconds

        yield ask


@contextmanager
def peer(name: str, model: PeerModel, a: argparse.Namespace, longest: int) -> Iterator[Ask]:
    """One of PEERS, with its prefix cache; by its own clock. Raises Refusal."""
    made = make_peer(
        name, model, a.folder, threads=a.threads, width=a.beam_width, prompt=longest, prefix_cache=True
    )
    try:
        made.start(a.beam_width)

        def ask(_: int, history: NDArray[np.int64]) -> float:
            tokens = model.tokens[history].reshape(-1).tolist()
            return made.ask(Deadline(LIMIT_S), do="generate", prompts=[tokens], width=a.beam_width)[1]

        yield ask
    finally:
        made.stop()


def measure(
    asks: dict[str, Ask], model: PeerModel, items: int, first_user: int, a: argparse.Namespace
) -> Any:
    """All systems in turns, with first visits of so many items; per system its figures, and what ours are `over` them,
    of each round in `each_over`.
    """
    took: dict[str, list[dict[str, list[float]]]] = {name: [] for name in asks}
    last = items + MORE * (a.visits - 1)
    for number, name in interleaved([*asks], a.rounds, f"{items} items"):
        draw = np.random.default_rng((items, number))
        histories = draw.integers(0, len(model.tokens), (a.users, last))
        took[name].append(visits_of(asks[name], histories, a.visits, first_user + number * a.users))
    later = {name: [sum(each[LATER]) / len(each[LATER]) for each in rounds] for name, rounds in took.items()}
    over = {
        name: [theirs / mine for theirs, mine in zip(of, later[NAME], strict=True)]
        for name, of in later.items()
    }
    return {
        name: {
            "rate": 1 / median(later[name]),
            "first_ms": 1e3 * float(np.median([s for each in rounds for s in each[FIRST]])),
            "later_ms": 1e3 * float(np.median([s for each in rounds for s in each[LATER]])),
            "over": median(over[name]),
            "each_over": over[name],
        }
        for name, rounds in took.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("returning_peers", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/peers"))
    parser.add_argument("--peers", default="openvino-genai")
    parser.add_argument("--prompts", default="255,990", help="tokens of a first visit")
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--visits", type=int, default=3)
    report.add_options(parser, beam_width=128, rounds=3, threads=0)
    a = parser.parse_args(arguments)
    a.threads = a.threads or usable_cores()  # peers are told how many
    names = a.peers.split(",")
    if not set(names) <= set(PEERS):
        raise InputError("peers", f"is {a.peers!r}", ", ".join(PEERS))
    levels = SHAPES["30m"].levels
    spans = report.numbers_of(a, "prompts", levels)
    prompts = [tokens // levels for tokens in spans]
    longest = max(prompts) + MORE * (a.visits - 1)
    if longest > LONGEST:
        raise InputError("prompts", f"become {levels * longest} tokens", f"at most {levels * LONGEST}")
    run = report.begin(a)
    model = PeerModel.make("30m", a.folder / "models" / "30m", SHAPES["30m"])
    cells: dict[str, Any] = {}
    refused: dict[str, str] = {}
    answers: list[Recommendation] = []
    with ExitStack() as stack:
        asks = {NAME: stack.enter_context(ours(model, a.beam_width, a.threads, answers))}
        for name in names:
            try:
                asks[name] = stack.enter_context(peer(name, model, a, levels * longest))
            except Refusal as error:
                refused[name] = error.reason
                print(f"{name}: {error.reason}")
        for cell, items in enumerate(prompts):
            found = measure(asks, model, items, 1 + cell * a.rounds * a.users, a)
            cells |= {f"{items * levels} tokens, {name}": figures for name, figures in found.items()}
    rows = [
        (name, *(f"{of[key]:.1f}" for key in ("first_ms", "later_ms", "rate", "over")))
        for name, of in cells.items()
    ]
    print(report.columns(("", "first ms", "later ms", "requests/s", "ours over it"), rows))
    checked = worth.worth_of(model.artifact, answers, a.beam_width)
    print(f"ours: {worth.line(checked)}")
    spread = {f"over, {name}": extremes(of.pop("each_over"))[1:] for name, of in cells.items()}
    run.publish({"cells": cells, "refused": refused, **checked._asdict()}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
