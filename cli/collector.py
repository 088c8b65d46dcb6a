"""A collector of OpenTelemetry's spans, as small as it can be: OTLP over HTTP in JSON, as Triton sends it.

It is there to look at single requests. What watches a fleet is the OpenTelemetry collector itself, Jaeger, Tempo.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from cli.spans import Raw
from genrec.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost")
STANDARD = "http://127.0.0.1:4318/v1/traces"
MOST_BYTES = 4 << 20  # of one message: thousands of spans
MOST_DIGITS = 12  # of a length: Python reads no number of thousands
MOST_TRACES = 256  # kept; the oldest go
SERVER_SPAN = "InferRequest"  # Triton's outermost span, and the last that ends


class Collector:
    """Listens at `url` from the start on, port 0 for any that is free; ended with its `with`."""

    def __init__(self, url: str) -> None:
        """Raises InputError when `url` is not of this machine, or another listens there."""
        limit = f"http on 127.0.0.1, as {STANDARD}"
        try:
            parts = urlsplit(url)
            port = 80 if parts.port is None else parts.port
        except ValueError as error:
            raise InputError("collector", f"is {url!r}: {error}", limit) from error
        if parts.scheme != "http" or parts.hostname not in LOOPBACK:
            raise InputError("collector", f"is {url!r}", limit)
        self._path = parts.path
        self._traces: OrderedDict[str, list[Raw]] = OrderedDict()
        self._came = threading.Condition()
        try:
            self._server = _Server(("127.0.0.1", port), _handler(self))
        except OSError as error:
            limit = "a free port; if a collector listens there already, look for traces there"
            raise InputError("collector", f"cannot listen at {url}: {error.strerror}", limit) from error
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{parts.path}"
        # Told to end, it looks so often, in s: else every `genrec trace` would take half a second more.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def take(self, path: str, body: bytes) -> str:
        """Keep the spans of a message; returns what is wrong with it, "" if nothing."""
        if path != self._path:
            return f"the path is {path}, not {self._path}"
        try:
            spans = [
                (str(span["traceId"]), span)
                for resource in json.loads(body)["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
                if _is_span(span)
            ]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            return f"not OTLP in JSON: {type(error).__name__}: {error}"
        with self._came:
            for trace, span in spans:
                self._traces.setdefault(trace, []).append(span)
            while len(self._traces) > MOST_TRACES:
                self._traces.popitem(last=False)
            self._came.notify_all()
        return ""

    def spans(self, trace: str, timeout_s: float) -> list[Raw]:
        """All spans of a trace once the server's own has come; those that came until `timeout_s` if it does not."""
        end = time.monotonic() + timeout_s
        with self._came:
            while not any(span["name"] == SERVER_SPAN for span in self._traces.get(trace, [])):
                left = end - time.monotonic()
                if left <= 0 or not self._came.wait(left):
                    break
            return self._traces.pop(trace, [])

    @property
    def kept(self) -> int:
        """How many traces nobody took yet."""
        return len(self._traces)

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *who: Any) -> None:
        """Who goes away before he is answered is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*who)


def _is_span(span: Any) -> bool:
    """Whether it has a name, an id and times that follow each other. Raises what reading of anything else raises."""
    texts = (span["name"], span["spanId"], span.get("parentSpanId", ""))
    if not all(isinstance(each, str) for each in texts):
        raise TypeError(f"a name or an id is no text: {texts}")
    return all(texts[:2]) and int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Takes POSTs of spans."""

        timeout = 10

        def do_POST(self) -> None:
            """As OTLP over HTTP wants it answered."""
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
                self._say(413, f"Content-Length is {length!r}, at most {MOST_BYTES}")
                return
            problem = collector.take(self.path, self.rfile.read(int(length)))
            self._say(400 if problem else 200, problem)

        def _say(self, status: int, problem: str) -> None:
            answer: dict[str, Any] = {"message": problem} if problem else {}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing."""

    return Handler
