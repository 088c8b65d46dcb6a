"""`genrec rank`: candidates, or what the generator finds, best first."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

from cli.options import add_settings, at_least, folder, numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("artifact", type=folder, help="the artifact folder, e.g. artifacts/ml-100k")
    parser.add_argument("--url", help="host:port of a server; without it the local runtime answers")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    parser.add_argument("--history", type=numbers, default=[], help="item ids, oldest first, e.g. 50,172,1")
    parser.add_argument("--user", type=int, help="take the history of this user of the data set instead")
    parser.add_argument("--candidates", type=numbers, help="item ids; without them the generator finds some")
    parser.add_argument(
        "--retrieve", type=at_least(1), default=100, help="how many it finds; default: %(default)s"
    )
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--ratings", type=numbers, help="of the history's items, 1 to 5, 0 where unknown")
    parser.add_argument("--times", type=numbers, help="of the history's items, in seconds")
    parser.add_argument("--now", type=int, help="in seconds; default: the newest of --times")
    parser.add_argument("--features", type=numbers, help="numbers of what is known of the user, e.g. 2,5,14")
    add_settings(parser, "beam_width", "ranker")


def run(a: argparse.Namespace) -> None:
    """Ask, and print titles with scores."""
    from cli.show import history_of, ranking_lines

    history = a.history if a.user is None else history_of(a.artifact, a.user)
    answer = _of_a_server(a, history) if a.url else _of_this_process(a, history)
    print("\n".join(ranking_lines(a.artifact, history, answer)))


def _of_a_server(a: argparse.Namespace, history: list[int]):  # type: ignore[no-untyped-def]
    from clients.ranker import Ranker

    with Ranker(a.url, a.protocol) as ranker:
        if a.candidates is not None:
            return ranker.rank(history, a.candidates, a.top_k, user_id=a.user, **_events(a))
        return ranker.recommend_and_rank(history, a.retrieve, a.top_k, user_id=a.user, **_events(a))


def _events(a: argparse.Namespace) -> dict[str, Any]:
    """What only an HSTU ranker reads."""
    from genrec.rank.kinds import EVENT_INPUTS

    return {name: getattr(a, name) for name in EVENT_INPUTS}


def _of_this_process(a: argparse.Namespace, history: list[int]):  # type: ignore[no-untyped-def]
    from clients.rank_wire import RANK, RECOMMEND_AND_RANK, event_tensors, parse_ranking, rank_tensors
    from clients.wire import recommend_and_rank_tensors
    from ensembles.local import LocalRecommender
    from genrec.errors import GenrecError

    if a.candidates is not None:
        decoder, tensors = RANK, rank_tensors(history, a.candidates, a.top_k, None, a.user, None)
    else:
        decoder = RECOMMEND_AND_RANK
        tensors = recommend_and_rank_tensors(history, a.retrieve, a.top_k, user_id=a.user)
    tensors |= event_tensors(**_events(a))
    with LocalRecommender(a.artifact, a.beam_width, decoder=decoder, ranker=a.ranker) as local:
        (answer,) = local.runtime.run([tensors])
    if isinstance(answer, GenrecError):
        raise answer
    return parse_ranking(SimpleNamespace(as_numpy=answer.get))
