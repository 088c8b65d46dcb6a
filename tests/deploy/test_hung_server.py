"""Servers that say they are ready and answer nothing, behind a real router: who asks another one must not notice."""

from __future__ import annotations

import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from tests.serving.processes import until

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
USERS = range(40)


@contextmanager
def ready_server(name: str, answers: threading.Event) -> Iterator[ServerPlace]:
    """One that is always ready, and answers requests with its name, but only while `answers` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            answers.wait()
            self.do_GET()
            with suppress(OSError):  # who asked may be gone
                self.wfile.write(name.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http, ThreadPoolExecutor(1) as pool:
        pool.submit(http.serve_forever)
        try:
            yield ServerPlace(name, http.server_port, http.server_port, 100)
        finally:
            answers.set()
            http.shutdown()


def ask(router: Router, user: int) -> str:
    """Who answered, or what the router said."""
    url, header = f"http://{router.http_url}/v2/models/recommend/infer", {"x-gr-user": str(user)}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", header), timeout=60) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def test_a_server_that_hangs_fills_its_own_queue_alone() -> None:
    hung, well, limits = threading.Event(), threading.Event(), Limits(in_flight=1, waiting=2, wait_ms=60_000)
    hung.set()
    well.set()
    with (
        ready_server("a1", hung) as first,
        ready_server("a2", well) as second,
        running_router([first, second], 2, limits, choose_ports()) as router,
        ThreadPoolExecutor(8) as pool,
    ):
        until(lambda: router.ask("show stat").count(",UP,") == 6, 30)  # two servers and their backend, twice
        homes = {user: ask(router, user) for user in USERS}
        assert set(homes.values()) == {"a1", "a2"}
        hung.clear()
        try:
            users = [user for user in USERS if homes[user] == "a1"]
            asked = [pool.submit(ask, router, users[n % len(users)]) for n in range(8)]
            until(lambda: router.busy(["a1"]) + sum(each.done() for each in asked) == 8, 30)
            others = [user for user in USERS if homes[user] == "a2"]
            assert {ask(router, user) for user in others} == {"a2"}
        finally:
            hung.set()
        answers = [each.result() for each in asked]
    assert answers.count("a1") == 3, "one that it worked on, two that waited"
    assert sum("router: sheds load" in each for each in answers) == 5
