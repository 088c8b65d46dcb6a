"""A request at a server that goes reaches another, wherever it is when the router notices."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from clients.recommender import Recommender
from deploy.launcher import RunningServer
from deploy.ports import LOOPBACK, choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits

USERS = 20  # half of them belong to the first place
pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


@contextmanager
def nobody_answers() -> Iterator[int]:
    """The port of a socket whose queue is full: a connection to it is neither made nor refused."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((LOOPBACK, 0))
        full.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def is_seen_at(router: Router, place: str, answer: Future[list[int]]) -> bool:
    """Whether a request is seen at a place before it is answered."""
    while not answer.done():
        if router.busy([place]):
            return True
        time.sleep(0.002)
    return False


def test_a_request_on_its_way_to_a_server_that_is_marked_as_down_is_answered_by_another(
    server: RunningServer, items: list[int]
) -> None:
    seen = 0
    with nobody_answers() as port, ExitStack() as stack:
        places = [
            ServerPlace("a1", server.ports.http, port, 100),
            ServerPlace("a2", server.ports.http, server.ports.grpc, 100),
        ]
        router = stack.enter_context(running_router(places, 2, Limits(), choose_ports()))
        client = stack.enter_context(Recommender(router.ports.grpc_url))
        thread = stack.enter_context(ThreadPoolExecutor(1))

        def ask(user: int) -> list[int]:
            return client.recommend(items[:3], user_id=user).item_ids.tolist()

        with Recommender(server.grpc_url) as direct:
            want = direct.recommend(items[:3]).item_ids.tolist()
        for user in range(USERS):
            answer = thread.submit(ask, user)
            if is_seen_at(router, "a1", answer):
                seen += 1
                router.tell("set server be_grpc/a1 health down")
                assert answer.result(60) == want
                router.tell("set server be_grpc/a1 health up")
            assert answer.result(60) == want
            if seen == 3:
                return
    raise AssertionError(f"{seen} requests were on their way to the first place")
