"""A proxy of the environment is asked for other machines alone, by the clients of every protocol."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from clients.errors import ServerError, Unreachable
from clients.recommender import Recommender
from perf.kit.lean import LeanRecommender
from tests.clients.conftest import Failing
from tests.clients.test_client_served import call, every_way


def set_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{url}")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


@every_way
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_this_machine_is_asked_itself(
    failing: Failing, closed_url: str, kind: str, protocol: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxy(monkeypatch, closed_url)
    url = failing.urls[protocol].replace("127.0.0.1", host)
    with pytest.raises(ServerError, match="prefill: internal error"):
        call(kind, url, protocol, [1])


def test_the_client_for_load_asks_it_too(
    failing: Failing, closed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def session() -> None:
        async with LeanRecommender(failing.urls["grpc"], "recommend") as recommender:
            await recommender.recommend([1])

    set_proxy(monkeypatch, closed_url)
    with pytest.raises(ServerError, match="prefill: internal error"):
        asyncio.run(session())


def test_the_proxy_is_asked_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(proxy: socket.socket) -> bytes:
        connection, _ = proxy.accept()
        with connection:
            said = connection.recv(4096)
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        return said

    with socket.create_server(("127.0.0.1", 0)) as proxy, ThreadPoolExecutor(1) as pool:
        proxy.settimeout(30)
        set_proxy(monkeypatch, f"127.0.0.1:{proxy.getsockname()[1]}")
        said = pool.submit(refuse, proxy)
        with Recommender("recommender.example:8001") as recommender, pytest.raises(Unreachable):
            recommender.recommend([1])
    assert said.result().startswith(b"CONNECT recommender.example:8001 ")
