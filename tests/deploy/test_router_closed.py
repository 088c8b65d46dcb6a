"""What the router keeps from the servers: inner models, bodies without a limit, and idle connections."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from clients.aio import AsyncRecommender
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from ensembles.served import served
from genrec.settings import MOST_VALUES
from tests.deploy.test_hung_server import ready_server, ups
from tests.serving.processes import until

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
ENSEMBLES = served(3, draft=True, ranker=True)
NAMES = sorted(each.name for each in ENSEMBLES)
INNER = sorted({model.name for each in ENSEMBLES for model in each.models})


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    """Before one that answers whatever it is asked."""
    with (
        ready_server("a1", lambda: "a1") as place,
        running_router([place], 1, Limits(), choose_ports()) as running,
    ):
        until(lambda: ups(running, 1))
        yield running


def ask(router: Router, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    """Status and body of the answer."""
    with closing(HTTPConnection(router.ports.http_url, timeout=60)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def infer(router: Router, model: str) -> tuple[int, str]:
    return ask(router, "POST", f"/v2/models/{model}/infer", b"{}")


def test_every_ensemble_may_be_asked_and_no_inner_model(router: Router) -> None:
    for name in NAMES:
        assert infer(router, name) == infer(router, f"{name}/versions/1") == (200, "a1")
    for name in INNER:
        for asked in (name, f"{name}/versions/1", f"recommend/../{name}", f"%{ord(name[0]):x}{name[1:]}"):
            assert infer(router, asked)[0] == 404, asked
        for told in ("", "/ready", "/versions/1", "/versions/1/ready"):
            assert ask(router, "GET", f"/v2/models/{name}{told}")[0] == 200, "who reads of it asks it nothing"
    for asked in (
        "recommend%2F..%2Fencode_history",
        "encode_history%2Finfer%3F",
        "recommend/infer/encode_history",
        "x",
    ):
        assert infer(router, asked)[0] == 404, asked


def test_the_statistics_of_all_models_are_closed(router: Router) -> None:
    """Their path is that of a model named `stats`."""
    for path in ("stats", "stats/", "stats/versions/1", "stats/ready"):
        assert ask(router, "GET", f"/v2/models/{path}")[0] == 404, path


@pytest.fixture(scope="module")
def before_triton(server: RunningServer) -> Iterator[Router]:
    place = ServerPlace("a1", server.ports.http, server.ports.grpc, 100)
    with running_router([place], 1, Limits(), choose_ports()) as running:
        yield running


@pytest.mark.serving
def test_requests_that_a_server_never_answers_do_not_reach_it(
    before_triton: Router, items: list[int]
) -> None:
    empty = {"name": "history", "datatype": "INT64", "shape": [0, 0], "data": []}
    body = json.dumps({"inputs": [empty]}).encode()
    for _ in range(Limits().in_flight + Limits().waiting):
        assert ask(before_triton, "POST", "/v2/models/encode_history/infer", body)[0] == 404
    assert ask(before_triton, "POST", "/v2/models/recommend/infer", body)[0] == 400
    with Recommender(before_triton.ports.http_url, "http") as recommender:
        assert len(recommender.recommend(items[:3]).item_ids) == 10


@pytest.mark.serving
def test_ordinary_clients_pass(before_triton: Router, items: list[int]) -> None:
    longest = np.resize(np.array(items), MOST_VALUES)
    names = [each.name for each in served(3, draft=True, ranker=False)]

    async def later(name: str, protocol: str) -> list[int]:
        url = before_triton.ports.grpc_url if protocol == "grpc" else before_triton.ports.http_url
        async with AsyncRecommender(url, protocol, model=name) as recommender:
            return (await recommender.recommend(longest)).item_ids.tolist()

    for name in names:
        with Recommender(before_triton.ports.grpc_url, model=name) as recommender:
            want = recommender.recommend(longest).item_ids.tolist()
        with Recommender(before_triton.ports.http_url, "http", model=name) as recommender:
            assert recommender.recommend(longest).item_ids.tolist() == want
        assert [asyncio.run(later(name, protocol)) for protocol in ("grpc", "http")] == [want] * 2


@pytest.mark.serving
def test_models_may_be_read_of(before_triton: Router) -> None:
    with (
        closing(tritonclient.http.InferenceServerClient(before_triton.ports.http_url)) as over_http,
        closing(tritonclient.grpc.InferenceServerClient(before_triton.ports.grpc_url)) as over_grpc,
    ):
        for client in (over_http, over_grpc):
            for name in ("recommend", "encode_history"):
                assert client.is_model_ready(name) and client.get_model_metadata(name)
