"""Servers that say they are ready and do not answer, behind a real router."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection

import pytest

from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from tests.serving.processes import until
from tests.web import Quiet, answering

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
USERS = range(40)


@contextmanager
def ready_server(name: str, answer: Callable[[], str]) -> Iterator[ServerPlace]:
    """One that is always ready, and says to requests what `answer` does; it hangs up where that is nothing."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))  # or hanging up would be a reset
            if said := answer():
                with suppress(OSError):  # who asked may be gone
                    self.do_GET()
                    self.wfile.write(said.encode())

    with answering(Handler) as http:
        yield ServerPlace(name, http.server_port, http.server_port, 100)


def ask(router: Router, user: int, after_s: float = 0.0) -> str:
    """Who answered, or what the router said; the body comes so long after the head."""
    with closing(HTTPConnection(router.ports.http_url, timeout=60)) as connection:
        connection.putrequest("POST", "/v2/models/recommend/infer")
        connection.putheader("x-gr-user", str(user))
        connection.putheader("content-length", "2")
        connection.endheaders()
        time.sleep(after_s)
        connection.send(b"{}")
        return connection.getresponse().read().decode()


def ups(router: Router, servers: int) -> bool:
    """Whether it takes so many for ready, over both protocols; a backend is one more."""
    return router.ask("show stat").count(",UP,") == 2 * (servers + 1)


def test_a_server_that_hangs_fills_its_own_queue_alone() -> None:
    well, limits = threading.Event(), Limits(in_flight=1, waiting=2, wait_ms=60_000)
    well.set()
    with (
        ready_server("a1", lambda: "a1" if well.wait() else "") as first,
        ready_server("a2", lambda: "a2") as second,
        running_router([first, second], 2, limits, choose_ports()) as router,
        ThreadPoolExecutor(8) as pool,
    ):
        until(lambda: ups(router, 2))
        homes = {user: ask(router, user) for user in USERS}
        assert set(homes.values()) == {"a1", "a2"}
        well.clear()
        try:
            users = [user for user in USERS if homes[user] == "a1"]
            asked = [pool.submit(ask, router, users[n % len(users)]) for n in range(8)]
            until(lambda: router.busy(["a1"]) + sum(each.done() for each in asked) == 8)
            others = [user for user in USERS if homes[user] == "a2"]
            assert {ask(router, user) for user in others} == {"a2"}
        finally:
            well.set()
        answers = [each.result() for each in asked]
    assert answers.count("a1") == 3, "one that it worked on, two that waited"
    assert sum("router: sheds load" in each for each in answers) == 5


def test_a_request_that_was_not_answered_is_asked_elsewhere_once() -> None:
    """Whether its body comes with its head or after it, as from our own client over HTTP.

    No third time: it may be what ends the servers.
    """
    asked: list[int] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(ready_server(f"a{n}", partial(silent, asked, n))) for n in range(1, 5)]
        router = stack.enter_context(running_router(servers, 4, Limits(), choose_ports()))
        until(lambda: ups(router, 4))
        for user in USERS:
            asked.clear()
            assert "hung up" in ask(router, user, after_s=0.01 * (user % 2))
            assert len(set(asked)) == len(asked) == 2


def silent(asked: list[int], number: int) -> str:
    """Nothing, of the server with this number."""
    asked.append(number)
    return ""
