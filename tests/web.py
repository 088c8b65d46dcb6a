"""Web servers of a test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """On a free port of loopback, until the `with` ends; that takes no half second, as of itself it would."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield web
        finally:
            web.shutdown()
            thread.join()
