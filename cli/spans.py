"""One request's way through the server as a tree of spans, from what Triton tells an OpenTelemetry collector.

Triton gives a span for the server, for the ensemble and for every model, and events within them (its trace.md). A span
of a model ends when Triton frees its input, which is after the next model has begun, or, where another thread answers,
long before. Ensembles here are chains, so a step lasts until the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Raw = Mapping[str, Any]  # a span of OTLP in JSON


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end` (ns), made of `parts`, which come one after the other within it."""

    name: str
    start: int
    end: int
    parts: list[Span] = field(default_factory=list)

    @property
    def last_start(self) -> int:
        """When the last of all that it is made of began."""
        return max([self.start, *(part.last_start for part in self.parts)])

    def shifted(self, by: int) -> Span:
        """The same `by` ns later."""
        return Span(self.name, self.start + by, self.end + by, [part.shifted(by) for part in self.parts])

    def within(self, start: int, end: int) -> Span:
        """What of it lies between `start` and `end`."""
        parts = [part.within(start, end) for part in self.parts]
        return Span(self.name, min(max(self.start, start), end), max(min(self.end, end), start), parts)

    def as_json(self, zero: int | None = None) -> dict[str, Any]:
        """Name, start and duration in ms; starts are counted from that of the whole."""
        zero = self.start if zero is None else zero
        parts = [part.as_json(zero) for part in self.parts]
        return {
            "name": self.name,
            "start": (self.start - zero) / 1e6,
            "ms": (self.end - self.start) / 1e6,
        } | {"parts": parts}


def way_of(spans: Iterable[Raw], start: int, end: int) -> Span:
    """The way of a request that the client sent at `start` and had the answer of at `end` (ns of Unix time).

    `spans` are all of its trace. A server whose clock differs is put in the middle of the client's time. What it notes
    as it tidies up, after the client has the answer, is cut off.
    """
    client = Span("client", start, end)
    inner: dict[str, list[Raw]] = {}
    for span in sorted(spans, key=_start):
        inner.setdefault(span.get("parentSpanId", ""), []).append(span)
    ids = {span["spanId"] for below in inner.values() for span in below}
    servers = [_server(span, inner) for parent, below in inner.items() if parent not in ids for span in below]
    if not servers:
        return client
    server = servers[0]
    if server.start < start or server.last_start > end:
        server = server.shifted((start + end - server.start - server.end) // 2)
    server = server.within(start, end)
    around = (Span("send", start, server.start), server, Span("receive", server.end, end))
    return replace(client, parts=list(around))


def _server(span: Raw, inner: Mapping[str, list[Raw]]) -> Span:
    ensembles = [_ensemble(each, inner) for each in inner.get(span["spanId"], [])]
    return Span("server", _start(span), _end(span), ensembles)


def _ensemble(span: Raw, inner: Mapping[str, list[Raw]]) -> Span:
    models = [each for each in inner.get(span["spanId"], []) if each["name"] != "compute"]
    ends = [_start(each) for each in models[1:]] + [_end(each) for each in models[-1:]]
    steps = [_step(each, end, inner) for each, end in zip(models, ends, strict=True)]
    return Span(span["name"], _start(span), _end(span), steps)


def _step(span: Raw, end: int, inner: Mapping[str, list[Raw]]) -> Span:
    """A model's time in queue, at work, and, if it answers later, until then."""
    parts: list[Span] = []
    for compute in inner.get(span["spanId"], [])[:1]:
        begun, done = _start(compute), min(_end(compute), end)
        parts = [Span("queue", _start(span), begun), Span("compute", begun, done)]
        if end > _end(span):
            parts.append(Span("answers later", done, end))
    return Span(span["name"], _start(span), end, parts)


def _start(span: Raw) -> int:
    return int(span["startTimeUnixNano"])


def _end(span: Raw) -> int:
    return int(span["endTimeUnixNano"])
