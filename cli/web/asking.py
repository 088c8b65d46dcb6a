"""Requests of the page: what the decoders answer, or why they do not, and the way of each as spans."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from typing import Any

from cli.collector import Collector
from cli.show import ENSEMBLES
from cli.spans import Span, way_of
from cli.trace import WAIT_S, traceparent_of
from cli.web.shelf import Shelf
from clients.aio import AsyncRecommender
from clients.errors import Overloaded, TimedOut, Unreachable
from clients.wire import Recommendation
from genrec.catalogue.typed import split_names
from genrec.errors import GenrecError, InputError

TIMEOUT_S = 20.0
KEPT = 64  # requests whose way may still be asked for


class Asking:
    """A client per decoder, and the collector that the server sends spans to, if it sends any."""

    def __init__(
        self, url: str, decoders: tuple[str, ...], shelf: Shelf, collector: Collector | None
    ) -> None:
        """`url` is host:port of HTTP: unlike gRPC's, a connection is made anew as soon as a server is back."""
        self._clients = {
            decoder: AsyncRecommender(url, "http", timeout_s=TIMEOUT_S, model=ENSEMBLES[decoder])
            for decoder in decoders
        }
        self._shelf, self._collector = shelf, collector
        self._asked: OrderedDict[str, tuple[int, int]] = OrderedDict()  # trace -> when sent, when answered

    async def answers(self, body: Any) -> list[dict[str, Any]]:
        """What each decoder says to a request of the page, one after the other. Raises InputError for a body that
        is none.
        """  # fmt: skip
        given = asked_of(body)
        for name in ("exclude", "only"):
            if body.get(name) is not None:
                given[name] = self._shelf.ids(name, body[name])
        for name in ("exclude_groups", "only_groups"):
            if body.get(name) is not None:
                given[name] = _names(name, body[name])
        return [await self._answer(decoder, given) for decoder in self._clients]

    async def _answer(self, decoder: str, given: dict[str, Any]) -> dict[str, Any]:
        trace, start = secrets.token_hex(16), time.time_ns()
        told: dict[str, Any] = {"decoder": decoder, "ensemble": ENSEMBLES[decoder]}
        try:
            answer = await self._clients[decoder].recommend(**given, traceparent=traceparent_of(trace))
            told |= self._told(answer)
        except GenrecError as error:
            told["error"] = error_as_json(error)
        end = time.time_ns()
        self._asked[trace] = (start, end)
        while len(self._asked) > KEPT:
            self._asked.popitem(last=False)
        return {**told, "ms": (end - start) / 1e6, "trace": trace if self._collector else None}

    def _told(self, answer: Recommendation) -> dict[str, Any]:
        named = self._shelf.named(answer.item_ids, answer.catalogue_version)
        items = [{**each, "score": float(score)} for each, score in zip(named, answer.scores, strict=True)]
        facts = ("by", "dropped", "cut", "prompt_tokens", "valid", "catalogue_version")
        return {"items": items, **{name: getattr(answer, name) for name in facts}}

    async def way(self, trace: str) -> dict[str, Any]:
        """The spans of a request asked here. Raises InputError for another."""
        if self._collector is None or trace not in self._asked:
            raise InputError("trace", "is none of this page's", "one of the last requests, once")
        start, end = self._asked.pop(trace)
        spans = await asyncio.to_thread(self._collector.spans, trace, WAIT_S)
        way: Span = way_of(spans, start, end)
        return way.as_json()

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


def asked_of(body: Any) -> dict[str, Any]:
    """A request of the page as arguments of `recommend`; their values the client checks. Raises InputError."""
    if not isinstance(body, dict) or not isinstance(body.get("history"), list):
        raise InputError("request", "is no object with a list `history`", "JSON as the page sends it")
    names = ("top_k", "exclude_history", "deadline_ms")
    given = {name: body[name] for name in names if body.get(name) is not None}
    return {"history": [_id(item) for item in body["history"]], **given}


def _id(item: Any) -> Any:
    """The page's ids are texts (`Shelf.item`); what is none goes on to the client, which refuses it."""
    digits = item.removeprefix("-") if isinstance(item, str) else ""
    return int(item) if digits.isascii() and digits.isdecimal() and len(digits) <= 19 else item


def _names(field: str, given: Any) -> list[str]:
    if not isinstance(given, str):
        raise InputError(field, f"is {given!r}"[:100], "a text of names, as sale,new")
    return split_names(given, field)


def error_as_json(error: GenrecError) -> dict[str, str]:
    """Which kind it is, for the page to say what to do, and the message."""
    if isinstance(error, InputError):
        kind = "bad_input"
    elif isinstance(error, Overloaded):
        kind = "deadline" if "deadline_ms" in str(error) else "overloaded"
    elif isinstance(error, Unreachable):
        kind = "away"
    else:
        kind = "timeout" if isinstance(error, TimedOut) else "failed"
    return {"kind": kind, "message": str(error)}
