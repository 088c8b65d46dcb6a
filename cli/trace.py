"""`genrec trace`: one request's way through a running server, drawn as a waterfall."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from cli.collector import STANDARD, Collector
from cli.options import check_read
from cli.running import read_server
from cli.spans import Span, way_of
from cli.waterfall import as_svg, as_text
from clients.errors import Unreachable
from clients.rank_wire import RANK, RECOMMEND_AND_RANK
from clients.ranker import Ranker
from clients.recommender import Recommender
from genrec.errors import GenrecError, InputError

WAIT_S = 5.0  # for spans; Triton sends them five times a second
ATTEMPTS = 3  # over gRPC Triton 2.51 loses one trace in a hundred, six on a busy machine
GENERATE = ("recommend", "recommend_staged", "recommend_draft", RECOMMEND_AND_RANK)
WISHES = ("exclude", "only", "exclude_groups", "only_groups")
READ_BY = {
    "candidates": (RANK,), "retrieve": (RECOMMEND_AND_RANK,), **dict.fromkeys(WISHES, GENERATE),
}  # fmt: skip


class Untraced(GenrecError):
    """The request was answered and no span of it came."""


def run(a: argparse.Namespace) -> None:
    """Ask once, and draw. A request that was refused is drawn as far as it came. Raises what the client raises."""
    if a.ensemble not in (known := (*GENERATE, RANK)):
        raise InputError("ensemble", f"is {a.ensemble!r}", ", ".join(known))
    check_read(a.ensemble, vars(a), READ_BY)
    server = read_server(a.server)
    with Collector(a.collector or server.trace_url or STANDARD) as collector:
        url = server.http_url if a.protocol == "http" else server.grpc_url
        whole, refused = ask(collector, url, a)
    print(as_text(whole))
    if a.svg:
        a.svg.write_text(as_svg(whole))
    if refused:
        raise refused


def ask(collector: Collector, url: str, a: argparse.Namespace) -> tuple[Span, GenrecError | None]:
    """The request's way, and why it was refused, if it was. Raises Untraced, Unreachable, InputError."""
    refused = None
    with _asking(url, a) as send:
        for _ in range(ATTEMPTS):
            trace, refused = secrets.token_hex(16), None
            start = time.time_ns()
            try:
                send(top_k=a.top_k, deadline_ms=a.deadline_ms, traceparent=traceparent_of(trace))
            except GenrecError as error:
                if isinstance(error, Unreachable) or type(error) is InputError:
                    raise  # no server has taken it: there is nothing to wait for
                refused = error
            end = time.time_ns()
            if spans := collector.spans(trace, WAIT_S):
                return way_of(spans, start, end), refused
    raise refused or Untraced(
        f"{url}: no spans came to {collector.url}: `genrec serve --trace-url {collector.url}`"
    )


@contextmanager
def _asking(url: str, a: argparse.Namespace) -> Iterator[Callable[..., object]]:
    """What asks the ensemble `a.ensemble`. Raises InputError."""
    if a.ensemble == RANK and a.candidates is None:
        raise InputError("candidates", "are not given", f"item ids, for the ensemble {RANK}")
    wishes = {name: getattr(a, name) for name in WISHES}
    if a.ensemble in (RANK, RECOMMEND_AND_RANK):
        with Ranker(url, a.protocol) as ranker:
            if a.ensemble == RANK:
                yield partial(ranker.rank, a.history, a.candidates)
            else:
                yield partial(ranker.recommend_and_rank, a.history, a.retrieve, **wishes)
    else:
        with Recommender(url, a.protocol, model=a.ensemble) as recommender:
            yield partial(recommender.recommend, a.history, **wishes)


def traceparent_of(trace: str) -> str:
    """The header that makes a request part of a trace (W3C Trace Context); the client's own span has a new id."""
    return f"00-{trace}-{secrets.token_hex(8)}-01"
