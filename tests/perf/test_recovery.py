"""What the benchmark of recovery takes for away, and for wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.main import main
from clients.aio import AsyncRecommender
from clients.errors import Unreachable
from deploy.launcher import RunningServer
from perf.kit import traffic
from perf.slo import recovery
from perf.slo.recovery import SteadyLoad


class Client:
    """Answers what it is told to, or fails."""

    def __init__(self) -> None:
        self.answer: list[int] | None = [1, 2]

    async def recommend(self, history: Any) -> Any:
        if self.answer is None:
            raise Unreachable("gone")
        return SimpleNamespace(item_ids=np.array(self.answer))


def test_only_an_ensemble_that_failed_was_away_and_only_until_it_answered() -> None:
    async def run() -> SteadyLoad:
        hit, other = Client(), Client()
        traffic = SteadyLoad({"hit": hit, "other": other}, [np.array([1])])  # type: ignore[dict-item]
        await traffic.learn()
        traffic.disturb()
        await traffic._ask("other", 0)
        hit.answer = None
        await traffic._ask("hit", 0)
        assert not traffic.settled
        hit.answer = [2, 1]
        await traffic._ask("hit", 0)
        assert not traffic.settled, "it answers, and wrongly"
        hit.answer = [1, 2]
        await traffic._ask("hit", 0)
        assert traffic.settled
        return traffic

    traffic = asyncio.run(run())
    assert traffic.away().keys() == {"hit"} and traffic.away()["hit"] > 0
    assert (traffic.wrong, traffic.outcomes) == (1, {"right": 2, "wrong": 1, "Unreachable": 1})


async def strike(
    load: SteadyLoad, slept_for: Callable[[float], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> dict[str, float]:
    """Of the one process of a server that is there again at once; `slept_for` is asyncio's sleep meanwhile."""
    await load.learn()
    server: Any = SimpleNamespace(restarts=0)

    def kill(*_: int) -> None:
        server.restarts = 1

    monkeypatch.setattr(recovery.os, "kill", kill)
    monkeypatch.setattr(recovery, "processes", lambda _: {"generate": 0})
    monkeypatch.setattr(recovery.asyncio, "sleep", slept_for)
    return await recovery._strike(server, "generate", 9, load)


def test_who_fails_again_in_the_calm_was_away_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    client, slept = Client(), list[float]()
    load = SteadyLoad({"hit": client}, [np.array([1])])  # type: ignore[dict-item]

    async def slept_for(seconds: float) -> None:
        slept.append(seconds)
        client.answer = None if len(slept) == 2 else [1, 2]  # it fails in the first calm
        await load._ask("hit", 0)

    assert asyncio.run(strike(load, slept_for, monkeypatch)).keys() == {"hit"}
    assert slept.count(recovery.CALM_S) == 2


def test_a_request_that_hangs_is_waited_for_before_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails once others have long been answered, and is of the process that was struck."""
    client, slept = Client(), list[float]()
    load = SteadyLoad({"hit": client}, [np.array([1])])  # type: ignore[dict-item]
    gone, hanging = asyncio.Event(), set[asyncio.Task[None]]()
    sleep = asyncio.sleep

    class Hangs(Client):
        async def recommend(self, history: Any) -> Any:
            await gone.wait()
            raise Unreachable("gone")

    async def slept_for(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            load._clients["hit"] = Hangs()  # type: ignore[assignment]
            hanging.add(asyncio.create_task(load._ask("hit", 0)))
            await sleep(0)
            load._clients["hit"] = client  # type: ignore[assignment]
        elif len(slept) == 3:  # after a first calm
            gone.set()
        await sleep(0.001)  # the clock goes on
        await load._ask("hit", 0)

    assert asyncio.run(strike(load, slept_for, monkeypatch)).keys() == {"hit"} and not load._under_way


@pytest.mark.serving
@pytest.mark.long
def test_an_artifact_with_a_ranker_is_asked_for_recommendations(
    tiny_ranker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def learn(server: RunningServer, histories: traffic.Histories, rate: float) -> Any:
        """As `disturb` begins."""
        clients = {name: AsyncRecommender(server.http_url, "http", model=name) for name in server.ensembles}
        load = SteadyLoad(clients, histories)
        await load.learn()
        for client in clients.values():
            await client.close()
        rows = [{"signal": name, "away_s": 0.0} for name in ("SIGKILL", "SIGSTOP")]
        return rows, load, {server.pid}

    monkeypatch.setattr(recovery, "disturb", learn)
    assert main(["bench", "recovery", str(tiny_ranker), "--beam-width", "16"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["orphans"] == 0
