"""The clients against the real server and, for what that one does not do, against servers that misbehave."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients.aio import AsyncRecommender
from clients.errors import BadRequest, Overloaded, ServerError, TimedOut, Unreachable
from clients.recommender import Recommender
from clients.wire import Recommendation
from deploy.launcher import RunningServer
from genrec.errors import InputError
from tests.clients.conftest import Failing
from tests.serving.processes import until

pytestmark = pytest.mark.serving
Call = Callable[..., Recommendation]


def url_of(server: RunningServer, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def call(
    kind: str,
    url: str,
    protocol: str,
    *history: Any,
    timeout_s: float = 60.0,
    model: str = "recommend",
    **k: Any,
) -> Any:
    """One request through the client of `kind`."""
    if kind == "sync":
        with Recommender(url, protocol, timeout_s=timeout_s, model=model) as recommender:  # type: ignore[arg-type]
            return recommender.recommend(*history, **k)

    async def session() -> Recommendation:
        async with AsyncRecommender(url, protocol, timeout_s=timeout_s, model=model) as recommender:  # type: ignore[arg-type]
            return await recommender.recommend(*history, **k)

    return asyncio.run(session())


WAYS = [(kind, protocol) for kind in ("sync", "async") for protocol in ("grpc", "http")]
every_way = pytest.mark.parametrize(("kind", "protocol"), WAYS)


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        (12, {}),
        (40, {"top_k": 5, "user_id": 7, "deadline_ms": 60_000, "exclude_history": True}),
        (0, {"top_k": 3}),
        (0, {"top_k": 3, "exclude": [1], "only": range(2**13)}),
    ],
)
def test_every_way_gives_the_same_answer(
    server: RunningServer, items: list[int], length: int, arguments: dict[str, Any]
) -> None:
    unknown = [-5] if length else []
    answers = [call(kind, url_of(server, p), p, items[:length] + unknown, **arguments) for kind, p in WAYS]
    first = answers[0]
    for answer in answers[1:]:
        assert np.array_equal(answer.item_ids, first.item_ids)
        assert np.array_equal(answer.scores, first.scores)
        assert vars(answer).keys() == vars(first).keys()
        assert [answer.by, answer.dropped, answer.cut, answer.prompt_tokens, answer.valid] == [
            first.by, first.dropped, first.cut, first.prompt_tokens, first.valid,
        ]  # fmt: skip
    assert len(set(first.item_ids.tolist())) == arguments.get("top_k", 10)
    assert first.by == ("model" if length else "popularity")
    assert first.dropped == len(unknown) and first.cut == max(length - 16, 0)
    if arguments.get("exclude_history"):
        assert not set(first.item_ids.tolist()) & set(items[:length][-16:])


def test_one_connection_serves_many_requests_at_once(server: RunningServer, items: list[int]) -> None:
    async def session() -> list[Recommendation]:
        async with AsyncRecommender(server.grpc_url) as recommender:
            return await asyncio.gather(*(recommender.recommend(items[n : n + 5]) for n in range(20)))

    with Recommender(server.grpc_url) as recommender:
        for number, answer in enumerate(asyncio.run(session())):
            alone = recommender.recommend(items[number : number + 5])
            assert np.array_equal(answer.item_ids, alone.item_ids)


@every_way
def test_bad_request(server: RunningServer, items: list[int], kind: str, protocol: str) -> None:
    with pytest.raises(BadRequest, match="beam width is 32") as raised:
        call(kind, url_of(server, protocol), protocol, items[:3], top_k=33)
    assert (raised.value.field, raised.value.problem) == ("top_k", "is 33")
    with pytest.raises(InputError, match="deadline_ms"):
        call(kind, url_of(server, protocol), protocol, items[:3], deadline_ms=0)
    with pytest.raises(BadRequest):  # by Triton itself: that model has other outputs
        call(kind, url_of(server, protocol), protocol, items[:3], model="encode_history")


@every_way
def test_overloaded(server: RunningServer, items: list[int], kind: str, protocol: str) -> None:
    """One millisecond is less than the hops take; a step sheds the request when it is late, or sees that it will be."""
    with pytest.raises(Overloaded, match=r"^deadline_ms: (passed|\d.* are left)"):
        call(kind, url_of(server, protocol), protocol, items[:3], deadline_ms=1)


@every_way
def test_unreachable(server: RunningServer, closed_url: str, kind: str, protocol: str) -> None:
    with pytest.raises(Unreachable, match=closed_url):
        call(kind, closed_url, protocol, [1])
    with pytest.raises(Unreachable, match="does not serve `nowhere`: "):
        call(kind, url_of(server, protocol), protocol, [1], model="nowhere")


@every_way
def test_timed_out(silent_url: str, kind: str, protocol: str) -> None:
    """Not against the real server: there a timeout is a cancel, which 2.51 may not survive (H2)."""
    with pytest.raises(TimedOut, match=r"0\.3 s"):
        call(kind, silent_url, protocol, [1], timeout_s=0.3)


@every_way
def test_server_error_and_header(failing: Failing, kind: str, protocol: str) -> None:
    with pytest.raises(ServerError, match="prefill: internal error"):
        call(kind, failing.urls[protocol], protocol, [1], user_id=-7)
    with pytest.raises(ServerError):
        call(kind, failing.urls[protocol], protocol, [1])
    # And nothing was retried
    assert [headers.get("x-gr-user") for headers in failing.headers] == ["-7", None]


def answered(server: RunningServer) -> int:
    with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=10) as response:
        return int(
            re.search(
                r'nv_inference_request_success\{model="recommend",[^}]*\} (\d+)', response.read().decode()
            )[1]
        )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_caller_that_stops_waiting_does_not_cancel_the_call(
    server: RunningServer, items: list[int], protocol: str
) -> None:
    async def session() -> None:
        async with AsyncRecommender(url_of(server, protocol), protocol) as recommender:  # type: ignore[arg-type]
            waiting = asyncio.create_task(recommender.recommend(items[:5]))
            while not recommender._calls:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    before = answered(server)
    asyncio.run(session())
    assert call("sync", url_of(server, protocol), protocol, items[:5]).by == "model"
    # Triton counts after it has answered; probes of the supervisor may add some.
    until(lambda: answered(server) >= before + 2)
