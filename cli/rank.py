"""`genrec rank`: candidates, or what the generator finds, best first."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cli.options import add_question, add_retrieve, add_settings, check_where, numbers, tell_outdated
from genrec.errors import GenrecError, InputError
from genrec.settings import Settings

LOCAL = ("beam_width", "ranker")  # settings that a server has for itself

if TYPE_CHECKING:
    from clients.rank_wire import Ranking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_question(parser, "take what the data set has of this user")
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--candidates", help="item ids, or keys; without them the generator finds some")
    add_retrieve(of, "how many it finds")
    parser.add_argument(
        "--ratings", type=numbers, help="of the history's items, 1 and higher, 0 where unknown"
    )
    parser.add_argument("--times", type=numbers, help="of the history's items, in seconds")
    parser.add_argument("--now", type=int, help="in seconds; default: the newest of --times")
    parser.add_argument("--features", type=numbers, help="numbers of what is known of the user, e.g. 2,5,14")
    add_settings(parser, *LOCAL)


def run(a: argparse.Namespace) -> None:
    """Ask, and print titles with scores."""
    from cli.show import items_of, known_of, ranking_lines, user_of, why_untitled
    from genrec.rank.kinds import EVENT_INPUTS

    check_where(a, LOCAL)
    if a.candidates is not None and a.beam_width != Settings.beam_width:
        raise InputError("beam-width", "is given with --candidates", "without: no beam search finds them")
    user = None if a.user is None else user_of(a.artifact, a.user)
    history = items_of(a.artifact, "history", a.history) if user is None else user.items.tolist()
    candidates = None if a.candidates is None else items_of(a.artifact, "candidates", a.candidates)
    owner = None if user is None else int(user.user_ids[0])
    events = {name: getattr(a, name) for name in EVENT_INPUTS}
    known = {} if owner is None else known_of(a.artifact, owner)
    with (_of_a_server if a.url else _of_this_process)(a, history, candidates, owner) as ask:
        for name, values in known.items():
            if events[name] is None and len(values) and reads(ask, name):
                events[name] = values
        answer = ask(**events)
    untitled = why_untitled(a.artifact, a.url, a.protocol, answer.catalogue_version) if a.url else ""
    print("\n".join(ranking_lines(a.artifact, history, answer, untitled)))


def reads(ask: Callable[..., object], name: str) -> bool:
    """Whether the ranker that answers `ask` reads times, say: one that does not refuses them before anything else.

    They are of one item, so that one that does is not made to rank a longer history.
    """
    try:
        ask(**{name: [0]})
    except InputError as error:
        return (error.field, error.problem) != (name, "is given")
    return True


@contextmanager
def _of_a_server(
    a: argparse.Namespace, history: list[int], candidates: list[int] | None, owner: int | None
) -> Iterator[Callable[..., Ranking]]:
    from clients.ranker import Ranker

    with Ranker(a.url, a.protocol) as ranker:
        if candidates is not None:
            ask = partial(ranker.rank, history, candidates)
        else:
            ask = partial(ranker.recommend_and_rank, history, a.retrieve)
        yield partial(ask, a.top_k, user_id=owner, deadline_ms=a.deadline_ms)


@contextmanager
def _of_this_process(
    a: argparse.Namespace, history: list[int], candidates: list[int] | None, owner: int | None
) -> Iterator[Callable[..., Ranking]]:
    from clients.rank_wire import (
        RANK,
        RECOMMEND_AND_RANK,
        event_tensors,
        parse_ranking,
        rank_tensors,
        recommend_and_rank_tensors,
    )
    from ensembles.local import LocalRecommender
    from genrec.rank.kinds import EVENT_INPUTS

    # What no artifact takes is refused before one is opened.
    if candidates is None:
        decoder = RECOMMEND_AND_RANK
        tensors = recommend_and_rank_tensors(history, a.retrieve, a.top_k, user_id=owner)
    else:
        decoder, tensors = RANK, rank_tensors(history, candidates, a.top_k, None, owner, None)
    tell_outdated(a.artifact)
    with LocalRecommender(a.artifact, a.beam_width, decoder=decoder, ranker=a.ranker) as local:

        def ask(**events: Any) -> Ranking:
            known = event_tensors(**(dict.fromkeys(EVENT_INPUTS) | events))
            (answer,) = local.runtime.run([tensors | known])
            if isinstance(answer, GenrecError):
                raise answer
            return parse_ranking(SimpleNamespace(as_numpy=answer.get))

        yield ask
