"""The router before real servers: who goes where, who is refused, and what happens when a server goes."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from clients.errors import Overloaded, Unreachable
from clients.ranker import Ranker
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, RouterError, running_router
from deploy.router.limits import Limits
from genrec.errors import GenrecError
from tests.deploy.prometheus import scrape, total
from tests.serving.processes import until
from tests.serving.servers import brief_server

WIDTH, LEVELS = 32, 3
USERS = range(12)
needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


@needs_haproxy
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_with_no_server_the_client_is_told_so(protocol: str) -> None:
    nobody = choose_ports()
    dead = ServerPlace("a1", nobody.http, nobody.grpc, 100)
    with running_router([dead, ServerPlace("b1")], 1, Limits(), choose_ports()) as router:
        url = router.ports.grpc_url if protocol == "grpc" else router.ports.http_url
        with Recommender(url, protocol) as recommender:
            for _ in range(3):
                with pytest.raises(Unreachable, match="no server is ready"):
                    recommender.recommend([1, 2, 3])
        with pytest.raises(RouterError, match=r"weight 300"):
            router.weigh("a1", 300)
        folder = router.folder
    assert not folder.exists() and router.process.returncode is not None


def test_without_haproxy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(GenrecError, match="apt-get install haproxy"),
        running_router([ServerPlace("a1")], 1, Limits(), choose_ports()),
    ):
        pass


@pytest.fixture(scope="module")
def servers(tiny_ranker: Path) -> Iterator[list[RunningServer]]:
    options = {"ensembles": ("recommend", "rank", "pre_infer"), "lease_ms": 600_000, "pre_infer_risk": 0}
    with ExitStack() as stack:
        yield [stack.enter_context(brief_server(tiny_ranker, beam_width=WIDTH, **options)) for _ in range(2)]


def places(servers: list[RunningServer]) -> list[ServerPlace]:
    return [ServerPlace(f"a{n}", s.ports.http, s.ports.grpc, 100) for n, s in enumerate(servers, 1)]


@pytest.fixture(scope="module")
def router(servers: list[RunningServer]) -> Iterator[Router]:
    with running_router(places(servers), 2, Limits(), choose_ports()) as running:
        yield running


def homes(router: Router, servers: list[RunningServer], protocol: str, items: list[int]) -> dict[int, int]:
    """Which server answered each user, by Triton's own counts."""

    def answered() -> list[float]:
        return [
            total(scrape(s.metrics_url), "nv_inference_request_success", model="recommend") for s in servers
        ]

    url = router.ports.grpc_url if protocol == "grpc" else router.ports.http_url
    found, before = {}, answered()
    with Recommender(url, protocol) as recommender:
        for user in USERS:
            recommender.recommend(items[:3], user_id=user)
            until(lambda before=before: answered() != before)  # Triton counts after it has answered
            found[user] = [now > then for now, then in zip(answered(), before, strict=True)].index(True)
            before = answered()
    return found


def pre_inferred(router: Router, history: list[int]) -> None:
    """Every user's prefix is in a pool, made by a signal over one of the protocols."""
    with Ranker(router.ports.grpc_url) as over_grpc, Ranker(router.ports.http_url, "http") as over_http:
        for user in USERS:
            signal = partial(
                (over_grpc if user % 2 else over_http).pre_infer, history, user, deadline_ms=60_000
            )
            until(lambda signal=signal: signal().outcome == "ready")


def ranked(router: Router, history: list[int], candidates: list[int]) -> tuple[list[list[int]], list[int]]:
    """Each user's ranking, over the protocol that his signal did not take, and the users whose prefix was not there."""
    answers, missed = [], []
    with Ranker(router.ports.grpc_url) as over_grpc, Ranker(router.ports.http_url, "http") as over_http:
        for user in USERS:
            found = (over_http if user % 2 else over_grpc).rank(history, candidates, user_id=user)
            answers.append(found.item_ids.tolist())
            assert found.user_reused in (0, LEVELS * len(history))
            missed += [] if found.user_reused else [user]
    return answers, missed


@needs_haproxy
@pytest.mark.serving
class TestServed:
    """In this order: the last one takes a server away."""

    def test_a_user_has_one_server_over_both_protocols(
        self, router: Router, servers: list[RunningServer], items: list[int]
    ) -> None:
        over_grpc = homes(router, servers, "grpc", items)
        assert set(over_grpc.values()) == {0, 1}
        assert homes(router, servers, "http", items) == over_grpc

    def test_a_drained_server_gives_its_users_away_and_gets_them_back(
        self, router: Router, servers: list[RunningServer], items: list[int]
    ) -> None:
        before = homes(router, servers, "grpc", items)
        router.weigh("a1", 0)
        assert set(homes(router, servers, "grpc", items).values()) == {1}
        router.weigh("a1", 100)
        assert homes(router, servers, "grpc", items) == before

    def test_a_ranking_meets_what_was_computed_ahead_for_it(
        self, router: Router, servers: list[RunningServer], items: list[int]
    ) -> None:
        """Over whichever protocol each of them comes; a drained server's users miss it, and are answered the same."""
        first, second, candidates = items[40:47], items[50:56], items[20:40]
        pre_inferred(router, first)
        with_prefix, missed = ranked(router, first, candidates)
        assert not missed
        own = homes(router, servers, "grpc", items)
        pre_inferred(router, second)
        router.weigh("a1", 0)
        without, missed = ranked(router, second, candidates)
        router.weigh("a1", 100)
        assert missed == [user for user in USERS if own[user] == 0]
        with Ranker(servers[0].grpc_url) as ranker:
            for answers, asked in ((with_prefix, first), (without, second)):
                want = ranker.rank(asked, candidates).item_ids.tolist()
                assert answers == [want] * len(USERS)

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    def test_what_is_too_much_is_refused_and_the_rest_answered(
        self, servers: list[RunningServer], items: list[int], protocol: str
    ) -> None:
        limits = Limits(in_flight=1, waiting=1, wait_ms=20)
        with running_router(places(servers), 2, limits, choose_ports()) as tight:
            url = tight.ports.grpc_url if protocol == "grpc" else tight.ports.http_url
            with Recommender(url, protocol) as recommender, ThreadPoolExecutor(24) as pool:
                found = Counter(pool.map(lambda n: outcome(recommender, items[:3], n), range(96)))
                until(lambda: tight.busy(["a1", "a2"]) == 0)
                assert outcome(recommender, items[:3], 1) == "answered"
            refused = sum(count for text, count in found.items() if text.startswith("router: sheds load"))
            assert found["answered"] >= 2 and refused >= 1
            assert found["answered"] + refused == 96, found
            code = total(
                scrape(tight.ports.metrics_url),
                "haproxy_backend_http_responses_total",
                proxy=f"be_{protocol}",
                code="5xx",
            )
            assert code == refused

    def test_only_inference_and_health_are_open(self, router: Router) -> None:
        with tritonclient.grpc.InferenceServerClient(router.ports.grpc_url) as client:
            assert client.is_server_ready() and client.is_model_ready("recommend")
            for call in (
                client.get_model_repository_index,
                client.get_inference_statistics,
                client.get_log_settings,
            ):
                with pytest.raises(InferenceServerException, match="not open here"):
                    call()
        for path, status in {
            "/v2": 200,
            "/v2/health/ready": 200,
            "/v2/models/recommend": 200,
            "/v2/models/recommend/config": 404,
            "/v2/models/recommend/../../repository/index": 404,
            "/v2/repository/index": 404,
            "/v2/systemsharedmemory/status": 404,
            "/metrics": 404,
        }.items():
            assert status_of(f"http://{router.ports.http_url}{path}") == status, path
        request = urllib.request.Request(
            f"http://{router.ports.http_url}/v2/models/recommend/infer", b"{}", method="POST"
        )
        request.add_header("content-length", str(1 << 30))
        assert status_of(request) == 413
        with closing(HTTPConnection(router.ports.http_url, timeout=30)) as chunks:
            chunks.putrequest("POST", "/v2/models/recommend/infer")
            chunks.putheader("transfer-encoding", "chunked")
            chunks.endheaders()  # and no chunk: the router need not read what it refuses, and may have hung up
            assert chunks.getresponse().status == 411, "a size that nobody says has no limit"

    def test_a_killed_server_loses_no_request_and_gets_its_users_back(
        self, router: Router, servers: list[RunningServer], items: list[int]
    ) -> None:
        before = homes(router, servers, "grpc", items)
        history, candidates = items[60:69], items[20:40]
        pre_inferred(router, history)
        with Ranker(servers[1].grpc_url) as ranker:
            want = ranker.rank(history, candidates).item_ids.tolist()
        os.kill(servers[0].pid, signal.SIGKILL)
        with Recommender(router.ports.grpc_url) as recommender:
            assert [outcome(recommender, items[:3], user) for user in USERS] == ["answered"] * len(USERS)
        answers, missed = ranked(router, history, candidates)
        assert answers == [want] * len(USERS)
        assert missed == [user for user in USERS if before[user] == 0], "those whose prefixes died with it"
        until(lambda: servers[0].restarts == 1 and up(router) == 2)
        assert homes(router, servers, "grpc", items) == before


def outcome(recommender: Recommender, history: list[int], user: int) -> str:
    try:
        recommender.recommend(history, user_id=user)
    except Overloaded as error:
        return str(error)
    return "answered"


def status_of(request: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def up(router: Router) -> float:
    """How many servers HAProxy takes for ready."""
    return total(scrape(router.ports.metrics_url), "haproxy_server_status", proxy="be_grpc", state="UP")
