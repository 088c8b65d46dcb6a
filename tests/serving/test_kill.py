"""kill -9 of engine processes in mid-request, lost requests, stale handles, overload. About 45 s: a small server of its
own; 20 s wait for leases to end.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from clients.errors import BadRequest, Overloaded, ServerError, Unreachable
from clients.recommender import Recommender
from deploy import tritonserver
from deploy.launcher import RunningServer
from genrec import leftovers
from genrec.errors import GenrecError
from genrec.kv.arena import LEASE_S, Arena
from tests.serving.loaded import UnderLoad
from tests.serving.processes import left_of, stub_of, until
from tests.serving.servers import brief_server
from tests.serving.wire import Arrays, ask, inputs, tensors

pytestmark = pytest.mark.serving
SLOTS, WIDTH = 8, 32
GRPC = tritonclient.grpc
STAGED = "recommend_staged"  # whose KV waits in the arena between steps
PROMPT = {"tokens": np.zeros((1, 32), np.int32), "ticket": np.array([[5, 31, 0, 0, 0, 0]])}


@pytest.fixture(scope="module")
def small(tiny: Path) -> Iterator[RunningServer]:
    """A server with room for eight requests at a time."""
    with brief_server(tiny, beam_width=WIDTH, arena_slots=SLOTS, ensembles=("recommend", STAGED)) as running:
        yield running
        pid, prefix = running.pid, running.supervisor.prefix
    assert left_of(pid) == []
    assert leftovers.files_of(prefix) == []


@pytest.fixture
def histories(items: list[int]) -> list[list[int]]:
    return [items[n : n + 1 + n % 12] for n in range(12)]


def usage(server: RunningServer) -> dict[str, int]:
    """Of the arena as it is now; a restart makes a new one."""
    arena = Arena(leftovers.SHM / f"{server.supervisor.prefix}arena")
    try:
        return arena.usage()
    finally:
        arena.close()


def answers(server: RunningServer, histories: list[list[int]], model: str = STAGED) -> list[np.ndarray]:
    return [ask(GRPC, server.grpc_url, tensors(history), model)["item_ids"][0] for history in histories]


class Load(UnderLoad):
    """Clients that ask all the time, over gRPC and HTTP: what they got, right or refused, and never a wrong item."""

    def __init__(
        self, server: RunningServer, model: str, histories: list[list[int]], expected: list[np.ndarray]
    ) -> None:
        self.model = model
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[object] = []
        super().__init__(*(partial(self._ask, server, n, histories, expected) for n in range(6)))

    def _ask(
        self, server: RunningServer, number: int, histories: list[list[int]], expected: list[np.ndarray]
    ) -> None:
        while not self.stopped:  # a connection that breaks is made anew
            url = (server.http_url, server.grpc_url)[number % 2]
            with Recommender(
                url, ("http", "grpc")[number % 2], timeout_s=60, model=self.model
            ) as recommender:
                while self.goes_on():
                    number += 1
                    place = number % len(histories)
                    try:
                        found = recommender.recommend(histories[place], 5)
                    except (Overloaded, Unreachable, ServerError) as error:
                        self.outcomes[type(error).__name__] += 1
                        time.sleep(0.02)
                        break
                    except GenrecError as error:  # a hang (TimedOut), or a good request called bad
                        self.wrong.append(error)
                        return
                    self.outcomes["right"] += 1
                    if not np.array_equal(found.item_ids, expected[place]):
                        self.wrong.append((histories[place], found.item_ids, expected[place]))


@pytest.mark.parametrize(
    ("ensemble", "model"),
    [
        ("recommend", "generate"),
        *(pytest.param(STAGED, each, marks=pytest.mark.long) for each in ("prefill", "decode")),
    ],
)
def test_kill_9_of_an_engine_process_under_load(
    small: RunningServer, histories: list[list[int]], ensemble: str, model: str
) -> None:
    expected, restarts, pid = answers(small, histories, ensemble), small.restarts, small.pid
    with Load(small, ensemble, histories, expected) as load:
        until(lambda: load.outcomes["right"] > 30)
        os.kill(stub_of(small.pid, model), signal.SIGKILL)
        until(lambda: small.restarts == restarts + 1)
        answered = load.outcomes["right"]
        until(lambda: load.outcomes["right"] > answered + 30)
    assert load.wrong == []
    assert load.outcomes["ServerError"] + load.outcomes["Unreachable"] > 0, load.outcomes
    assert (small.pid == pid) == (model != "generate")  # the other models went on
    for found, before in zip(answers(small, histories, ensemble), expected, strict=True):
        np.testing.assert_array_equal(found, before)
    until(lambda: usage(small)["free"] == SLOTS, LEASE_S + 60)
    arenas = [path for path in leftovers.files_of(small.supervisor.prefix) if path.name.endswith("arena")]
    assert len(arenas) == 1


def prefill(server: RunningServer) -> Arrays:
    """A request that goes no further: its slot waits for a step that never comes."""
    return {"kv": ask(GRPC, server.grpc_url, PROMPT, "prefill")["kv"], "ticket": PROMPT["ticket"]}


def beam_search(server: RunningServer, held: Arrays) -> Arrays:
    return ask(GRPC, server.grpc_url, {**held, "excluded": np.array([[-1]], np.int32)}, "beam_search")


@pytest.mark.long
def test_lost_requests_fill_the_arena_until_their_leases_end(
    small: RunningServer, histories: list[list[int]]
) -> None:
    """Full is said at once and clearly, over both protocols; then all is free again and old handles are stale."""
    expected = answers(small, histories[:1])[0]
    until(lambda: usage(small)["free"] == SLOTS, LEASE_S + 60)
    lost = [prefill(small) for _ in range(SLOTS)]
    for protocol, url in (("grpc", small.grpc_url), ("http", small.http_url)):
        with (
            Recommender(url, protocol, model=STAGED) as recommender,
            pytest.raises(Overloaded, match=rf"kv arena: no 1 adjacent free slots of {SLOTS}"),
        ):
            recommender.recommend(histories[0], 5)
    assert beam_search(small, lost[0])["paths"].size > 0  # a lost request whose lease runs can go on
    until(lambda: usage(small)["free"] == SLOTS, LEASE_S + 60)
    np.testing.assert_array_equal(answers(small, histories[:1])[0], expected)
    for held in lost:
        with pytest.raises(InferenceServerException, match="kv: ") as refused:
            beam_search(small, held)
        assert refused.value.status() == "StatusCode.INTERNAL"
    np.testing.assert_array_equal(answers(small, histories[:1])[0], expected)


def test_overload_sheds_some_and_answers_the_others_right(
    small: RunningServer, histories: list[list[int]]
) -> None:
    """Four times as many at once as there are slots, again and again."""
    expected, pid = answers(small, histories), small.pid
    outcomes: Counter[str] = Counter()
    with GRPC.InferenceServerClient(small.grpc_url) as client, ThreadPoolExecutor(4 * SLOTS) as pool:
        jobs = [
            (
                n % len(histories),
                pool.submit(client.infer, STAGED, inputs(GRPC, tensors(histories[n % len(histories)]))),
            )
            for n in range(40 * SLOTS)
        ]
        for place, job in jobs:
            try:
                np.testing.assert_array_equal(job.result(60).as_numpy("item_ids")[0], expected[place])
                outcomes["right"] += 1
            except InferenceServerException as error:
                assert error.status() == "StatusCode.UNAVAILABLE" and "kv arena: no " in error.message(), (
                    error
                )
                outcomes["shed"] += 1
    assert outcomes["right"] >= SLOTS and small.pid == pid, outcomes
    until(lambda: usage(small)["free"] == SLOTS, LEASE_S + 60)


@pytest.mark.parametrize("ensemble", ["recommend", STAGED])
def test_a_deadline_that_passes_is_said_so(
    small: RunningServer, histories: list[list[int]], ensemble: str
) -> None:
    """1 ms is less than the hops take. The slot is given back at once, not at the end of its lease."""
    with Recommender(small.grpc_url, model=ensemble) as recommender:
        for _ in range(10):
            with pytest.raises(
                Overloaded, match=r"deadline_ms: (passed .* ms before \w+ began|.* ms are left)"
            ):
                recommender.recommend(histories[5], 5, deadline_ms=1)
        recommender.recommend(histories[5], 5, deadline_ms=60_000)
        with pytest.raises(BadRequest, match="deadline_ms: is 0"):
            recommender.recommend(histories[5], 5, deadline_ms=0)
    with (
        Recommender(small.http_url, "http", model=ensemble) as recommender,
        pytest.raises(Overloaded, match="deadline_ms"),
    ):
        recommender.recommend(histories[5], 5, deadline_ms=1)
    assert usage(small)["held"] == 0


@pytest.mark.long
def test_grpc_clients_that_give_up(small: RunningServer, histories: list[list[int]]) -> None:
    """A client timeout over gRPC is a cancel, and the rest of the request is not done: its slot waits for its lease.

    Only a few: on 2.51 a cancel that races with the answer may end the server (H2). 1,400 in a row did not.
    """
    expected, processes = answers(small, histories), sorted(m.pid for m in tritonserver.members(small.pid))
    given_up = 0
    with GRPC.InferenceServerClient(small.grpc_url) as client:
        for n in range(12):
            try:
                client.infer(STAGED, inputs(GRPC, tensors(histories[n])), client_timeout=0.002 + n / 2000)
            except InferenceServerException as error:
                given_up += error.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert given_up > 0
    until(lambda: usage(small)["free"] == SLOTS, LEASE_S + 60)
    assert sorted(m.pid for m in tritonserver.members(small.pid)) == processes
    for found, before in zip(answers(small, histories), expected, strict=True):
        np.testing.assert_array_equal(found, before)
