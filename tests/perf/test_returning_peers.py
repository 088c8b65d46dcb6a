"""What the side by side of users who come again asks for, and what it makes of the times."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.main import main
from perf.peers import vllm_cpu
from perf.peers.ours import NAME
from perf.peers.returning import FIRST, LATER, MORE, measure, visits_of


def test_histories_grow_and_begin_as_they_did():
    asked: list[tuple[int, list[int]]] = []

    def ask(user: int, history: Any) -> float:
        asked.append((user, history.tolist()))
        return float(len(history))

    whole = np.arange(24).reshape(2, 12)
    took = visits_of(ask, whole, 3, 70)
    assert took == {FIRST: [8.0, 8.0], LATER: [10.0, 10.0, 12.0, 12.0]}
    assert [user for user, _ in asked] == [70, 71] * 3
    for user in (0, 1):
        mine = [history for who, history in asked if who == 70 + user]
        assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(mine))
        assert len(mine[1]) - len(mine[0]) == MORE and mine[-1] == whole[user].tolist()


def test_all_are_asked_the_same_and_no_turn_has_users_of_another():
    asked: dict[str, list[tuple[int, tuple[int, ...]]]] = {NAME: [], "peer": []}

    def of(name: str, seconds: float) -> Any:
        def ask(user: int, history: Any) -> float:
            asked[name].append((user, tuple(history.tolist())))
            return seconds if len(history) > 4 else 10 * seconds

        return ask

    model: Any = SimpleNamespace(tokens=np.zeros((50, 3)))
    a = argparse.Namespace(visits=3, users=2, rounds=4)
    found = measure({NAME: of(NAME, 0.5), "peer": of("peer", 1.5)}, model, 4, 1, a)
    times = {"rate": 1 / 1.5, "first_ms": 15000.0, "later_ms": 1500.0}
    assert found["peer"] == {**times, "over": 3.0, "each_over": [3.0] * 4}
    assert found[NAME]["over"] == 1.0
    assert sorted(asked[NAME]) == sorted(asked["peer"])
    assert {user for user, _ in asked[NAME]} == set(range(1, 9))


def test_vllm_has_as_many_threads_as_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVCACHE_SPACE", "OMP_THREADS_BIND"):
        monkeypatch.setenv(f"VLLM_CPU_{name}", "")
    for name in ("LOGGING_LEVEL", "NO_USAGE_STATS"):
        monkeypatch.setenv(f"VLLM_{name}", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8, 9})
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=lambda *_, **__: "engine"))
    options = {"model": "m", "dtype": "float32", "prompt": 9, "levels": 3, "threads": 2}
    assert vllm_cpu.start(options) == "engine" and os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "3,5"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--prompts", "9999"], "prompts: become "), (["--prompts", "2"], "prompts: is '2' (accepted: "),
        (["--visits", "500"], "prompts: become "),
    ],
)  # fmt: skip
def test_prompts_are_known_before_the_model_is_made(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "returning_peers", "--folder", str(tmp_path), *given]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
