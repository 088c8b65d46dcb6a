"""A client that threads share answers each of them, and refuses addresses and times that no connection can have."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from clients.aio import AsyncRecommender
from clients.errors import ServerError, TimedOut, Unreachable
from clients.recommender import Recommender
from clients.wire import Protocols, Recommendation
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from genrec.errors import InputError
from tests.web import Quiet, answering

THREADS = 8
TIMEOUT_S = 0.3
PATIENCE_S = 30  # after which a thread counts as hanging
LOOPBACK = "127.0.0.1"
both = pytest.mark.parametrize("protocol", ["grpc", "http"])


def at_once(recommender: Recommender, histories: list[list[int]]) -> list[Recommendation | Exception]:
    """A thread for every history, all started together; fails where one is still waiting after PATIENCE_S."""
    together = threading.Barrier(len(histories))
    found: dict[int, Recommendation | Exception] = {}

    def ask(place: int) -> None:
        together.wait(PATIENCE_S)
        try:
            found[place] = recommender.recommend(histories[place])
        except Exception as error:
            found[place] = error

    # Daemons: a thread that hangs must not keep the tests from ending.
    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(histories))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    hanging = sum(thread.is_alive() for thread in threads)
    assert not hanging, f"{hanging} of {len(threads)} threads hang"
    return [found[place] for place in range(len(histories))]


@pytest.mark.serving
@both
def test_threads_that_share_a_client_get_their_own_answers(
    server: RunningServer, items: list[int], protocol: Protocols
) -> None:
    histories = [items[n : n + 5] for n in range(THREADS)]
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Recommender(url, protocol) as recommender:
        alone = [recommender.recommend(history) for history in histories]
        for _ in range(5):
            for asked, expected in zip(at_once(recommender, histories), alone, strict=True):
                assert isinstance(asked, Recommendation), asked
                assert np.array_equal(asked.item_ids, expected.item_ids)


@both
def test_no_thread_waits_beyond_the_timeout_for_a_server_that_is_silent(protocol: Protocols) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"{LOOPBACK}:{silent.getsockname()[1]}"
        with Recommender(url, protocol, timeout_s=TIMEOUT_S) as recommender:
            for asked in at_once(recommender, [[1]] * THREADS):
                assert isinstance(asked, TimedOut), asked
            with pytest.raises(TimedOut):  # and again: nothing was left taken
                recommender.recommend([1])


class Cutting(Quiet):
    """Answers the first request of a connection with a 503 and cuts the connection at the second."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, int]]
    answer = b'{"error": "in ensemble \'recommend\', full"}'

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.client_address)
        if self.seen.count(self.client_address) > 1:
            self.close_connection = True
            return
        self.send_response(503)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)


class Grpc(Quiet):
    """Answers as a gRPC port does to who speaks HTTP/1.1: with a frame of settings."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wfile.write(bytes.fromhex("000006040000000000000400100000"))


def test_who_speaks_another_protocol_is_not_there() -> None:
    with answering(Grpc) as web:
        url = f"{LOOPBACK}:{web.server_port}"
        with Recommender(url, "http") as recommender, pytest.raises(Unreachable, match="gRPC port"):
            recommender.recommend([1])


@pytest.fixture
def cutting() -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Address of such a server, and who asked it, in order."""
    kept: list[tuple[str, int]] = []
    with answering(type("Kept", (Cutting,), {"seen": kept})) as web:
        yield f"{LOOPBACK}:{web.server_port}", kept


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_threads_that_end_leave_no_descriptor(cutting: tuple[str, list[tuple[str, int]]]) -> None:
    with Recommender(cutting[0], "http") as recommender:

        def ask() -> None:
            with pytest.raises(Exception, match="full"):
                recommender.recommend([1])

        ask()
        before = descriptors()
        for _ in range(30):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        assert descriptors() <= before + 2  # the connection, here and at the server


def test_a_kept_connection_that_was_closed_is_replaced_once(
    cutting: tuple[str, list[tuple[str, int]]],
) -> None:
    url, seen = cutting
    with Recommender(url, "http") as recommender:
        for _ in range(2):
            with pytest.raises(Exception, match="full"):
                recommender.recommend([1])
    first, second, third = seen
    assert first == second != third


def test_an_answer_that_is_cut_is_a_lost_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:

        def answer_half() -> None:
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # what is left unread would reset the connection instead
                    pass

        thread = threading.Thread(target=answer_half)
        thread.start()
        with (
            Recommender(f"{LOOPBACK}:{listening.getsockname()[1]}", "http") as recommender,
            pytest.raises(Unreachable, match="IncompleteRead"),
        ):
            recommender.recommend([1])
        thread.join()


def test_over_grpc_a_server_that_is_back_is_soon_reached() -> None:
    """Sooner than by a channel as gRPC makes it, whose next try is seconds away by then."""
    away_s, url = 6, f"{LOOPBACK}:{choose_ports().grpc}"

    async def session() -> None:
        begun = time.monotonic()
        async with AsyncRecommender(url) as awaited:
            with Recommender(url) as called, Recommender(url) as plain:
                plain._client = tritonclient.grpc.InferenceServerClient(url)
                while time.monotonic() < begun + away_s:
                    assert [await reaches(each) for each in (awaited, called, plain)] == [False] * 3
                    await asyncio.sleep(0.05)
                rpc = grpc.server(ThreadPoolExecutor(1))
                rpc.add_insecure_port(url)
                rpc.start()
                while not (await reaches(awaited) and await reaches(called)):
                    await asyncio.sleep(0.05)
                assert not await reaches(plain)
                rpc.stop(None)

    asyncio.run(asyncio.wait_for(session(), 60))


async def reaches(recommender: Recommender | AsyncRecommender) -> bool:
    """Whether there is a server; it knows no call."""
    with pytest.raises((ServerError, Unreachable)) as caught:
        answer = recommender.recommend([1])
        if isinstance(answer, Awaitable):
            await answer
    return isinstance(caught.value, ServerError)


@both
def test_a_closed_client_says_so(protocol: Protocols) -> None:
    recommender = Recommender(f"{LOOPBACK}:1", protocol)
    recommender.close()
    with pytest.raises(ServerError, match="closed"):
        recommender.recommend([1])


@pytest.mark.parametrize("client", [Recommender, AsyncRecommender])
@both
@pytest.mark.parametrize(
    "url",
    [
        "", "h", "h:", ":8001", "h:x", "h:99999", "h:0", "h:-1", "h:1 ", " h:1", "a b:1", "h:1/path", "http://h:1",
        "h\n:1", "::1:8001", "[::1]", "[::1]:x", "[h]:1", "[1.2.3.4]:1", "u@h:1", "h:１", None, 8001,
    ],
)  # fmt: skip
def test_an_address_that_none_can_have_is_refused(client: Any, protocol: str, url: Any) -> None:
    with pytest.raises(
        InputError, match=r"^url: is .* \(accepted: host:port or \[IPv6\]:port, port 1 to 65535"
    ):
        client(url, protocol)


@pytest.mark.parametrize("client", [Recommender, AsyncRecommender])
@both
@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf, -math.inf, "60", None, True, 1e9])
def test_a_timeout_that_none_can_wait_is_refused(client: Any, protocol: str, timeout_s: Any) -> None:
    with pytest.raises(InputError, match=r"^timeout_s: is .* \(accepted: seconds, above 0, at most 86400\)"):
        client("h:1", protocol, timeout_s=timeout_s)


@both
def test_an_ipv6_address_is_reached(protocol: Protocols) -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with (
        listening,
        Recommender(f"[::1]:{listening.getsockname()[1]}", protocol, timeout_s=TIMEOUT_S) as recommender,
        pytest.raises(TimedOut),  # it was connected to: a refused connection is Unreachable
    ):
        recommender.recommend([1])


@pytest.mark.serving
@pytest.mark.parametrize(
    ("name", "kind", "value", "answered"),
    [
        ("top_k", "INT32", 2**32 + 5, 5),  # Triton 2.51 wraps it: no model sees what was sent
        ("top_k", "INT64", 5, None),
        ("top_k", "INT32", 5.5, None),
        ("top_k", "INT32", "5", None),
        ("history", "INT64", 2**63, None),
        ("history", "INT64", 1.5, None),
    ],
)
def test_what_json_does_to_numbers(
    server: RunningServer, items: list[int], name: str, kind: str, value: object, answered: int | None
) -> None:
    """Held here so that docs/contracts.md says what is so: an INT32 in JSON wraps, all else is refused."""
    tensors = {"history": ("INT64", items[0]), "top_k": ("INT32", 5)} | {name: (kind, value)}
    inputs = [{"name": n, "datatype": k, "shape": [1, 1], "data": [v]} for n, (k, v) in tensors.items()]
    url = f"http://{server.http_url}/v2/models/recommend/infer"
    request = urllib.request.Request(url, json.dumps({"inputs": inputs}).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            found = {each["name"]: each["data"] for each in json.load(response)["outputs"]}
    except urllib.error.HTTPError as error:
        assert answered is None and error.code in (400, 500)  # 500: by Triton's parser
    else:
        assert answered == len(found["item_ids"])
