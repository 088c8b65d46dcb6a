"""Who answers `genrec batch`: the engines in this process, or a server that many requests are with at a time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import numpy as np

from cli.batch_files import Known
from cli.rank import reads
from clients.errors import Overloaded, ServerError, TimedOut, Unreachable
from clients.rank_wire import RECOMMEND_AND_RANK, event_tensors, parse_ranking
from clients.ranker import Ranker
from clients.recommender import Recommender
from clients.request import by_name, request_tensors
from clients.wire import Answered, parse
from ensembles.local import LocalRecommender
from genrec.errors import GenrecError
from genrec.rank.kinds import EVENT_INPUTS, PAST_INPUTS
from genrec.steps import Tensors

Ask = Callable[..., Answered]  # of `history`, and of what a ranker reads beside it
# What is known of users and a bar, which is moved, to answers in their order
Answers = Callable[[Sequence[Known], Any], Iterable[Answered]]
# Ensembles under their names in the local runtime
DECODERS = {"recommend": "beam", "recommend_draft": "draft", RECOMMEND_AND_RANK: RECOMMEND_AND_RANK}
TOGETHER = 64  # requests of a batch in this process
IN_FLIGHT = 64  # requests that a server has at a time: full batches, and far from the 1,024 that may wait
PATIENCE_S = 60.0  # how long a server may be away or shed load: longer than it takes to start again
PAUSE_S = 0.5
GRACE_S = 2.0
DEAD = "is not healthy"  # so Triton says of a model's process that has ended, in whose place another comes


@contextmanager
def local_answers(a: argparse.Namespace, wishes: dict[str, Any]) -> Iterator[Answers]:
    """The local runtime's, which reads histories of like lengths together."""
    parsed = parse_ranking if a.ensemble == RECOMMEND_AND_RANK else parse
    with LocalRecommender(a.artifact, a.beam_width, decoder=DECODERS[a.ensemble]) as local:

        def answered(asked: list[Tensors]) -> list[Answered]:
            answers = local.runtime.run(asked)
            for answer in answers:
                if isinstance(answer, GenrecError):
                    raise by_name(answer, wishes.get("exclude_groups"), wishes.get("only_groups"))
            return [parsed(SimpleNamespace(as_numpy=answer.get)) for answer in answers]

        def tensors(history: Any, **events: Any) -> Tensors:
            known = event_tensors(**{**dict.fromkeys(EVENT_INPUTS), **events})
            return {**request_tensors(history, a.top_k, **wishes), **known}

        told = _told(a, lambda **asked: answered([tensors(**asked)])[0])

        def answers_to(known: Sequence[Known], bar: Any) -> list[Answered]:
            found: dict[int, Answered] = {}
            order = np.argsort([len(each["history"]) for each in known], kind="stable")
            for start in range(0, len(order), TOGETHER):
                places = order[start : start + TOGETHER]
                asked = [tensors(**_of(known[place], told)) for place in places]
                found.update(zip(places, answered(asked), strict=True))
                bar.update(len(places))
            return [found[place] for place in range(len(known))]

        yield answers_to


@contextmanager
def server_answers(a: argparse.Namespace, wishes: dict[str, Any]) -> Iterator[Answers]:
    """A server's. One that restarts in the middle is waited for; one that is not there in the beginning is not. Where
    this is ended, answers under way have GRACE_S to come: a cancel can end Triton 2.51.
    """
    with (
        ThreadPool(IN_FLIGHT) as threads,  # outermost: no thread that a server keeps waiting is waited for
        Ranker(a.url, a.protocol) as ranker,
        Recommender(a.url, a.protocol, model=a.ensemble) as recommender,
    ):
        ask: Ask = recommender.recommend if a.ensemble != RECOMMEND_AND_RANK else ranker.recommend_and_rank
        ask = partial(ask, top_k=a.top_k, **wishes)
        told, over, free = _told(a, ask), Event(), Semaphore(IN_FLIGHT)

        def answer(known: Known) -> Answered:
            with free:
                return patiently(partial(ask, **_of(known, told)), over=over)

        def answers_to(known: Sequence[Known], bar: Any) -> Iterator[Answered]:
            for each in threads.imap(answer, known):
                yield each
                bar.update()  # here: its count is no thread's own

        try:
            yield answers_to
        except BaseException:
            over.set()
            threads.terminate()  # who was not asked for yet is not
            until = time.monotonic() + GRACE_S
            for _ in range(IN_FLIGHT):
                free.acquire(timeout=max(until - time.monotonic(), 0))
            raise


def _told(a: argparse.Namespace, ask: Ask) -> list[str]:
    """What of a user is told: `ask` says what it reads, before it is asked for anyone. Raises what it raises."""
    ask(history=[])
    further = PAST_INPUTS if a.ensemble == RECOMMEND_AND_RANK else ()
    return ["history", *(name for name in further if reads(partial(ask, history=[]), name))]


def _of(known: Known, told: Sequence[str]) -> Known:
    """What is told of a user. An empty list of what is not known is left out."""
    return {name: known[name] for name in told if name == "history" or len(known.get(name, ()))}


def patiently(
    ask: Callable[[], Answered], patience_s: float = PATIENCE_S, over: Event | None = None
) -> Answered:
    """What `ask` answers, asked again while the server, or a model of it, is away or sheds load. Raises its error after
    `patience_s`, and once all is `over`.
    """
    until, over = time.monotonic() + patience_s, over or Event()
    while True:
        try:
            return ask()
        except (Overloaded, TimedOut, Unreachable, ServerError) as error:
            lasts = isinstance(error, ServerError) and DEAD not in str(error)
            if lasts or time.monotonic() > until or over.wait(PAUSE_S):
                raise
