"""What is noticed first: that a process stands still, or that nobody answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deploy import probe, tritonserver
from deploy.launch import Launch
from deploy.watch import Watch
from tests.serving.processes import until


def test_nobody_is_asked_while_the_server_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of a stopped server waits for seconds in which its processes are not looked at."""
    asked: list[str] = []
    real = probe.infer_all

    def infer_all(http: str, ensembles: list[str], item: int, timeout_s: float) -> dict[str, str]:
        if http:  # of a server of other tests, which this process watches too
            return real(http, ensembles, item, timeout_s)
        asked.extend(ensembles)
        return {}

    monkeypatch.setattr(probe, "answered", lambda *given: {})
    monkeypatch.setattr(probe, "infer_all", infer_all)
    launch: Any = SimpleNamespace(http="", metrics="", ensembles=("recommend",), item=lambda: 1)
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = Watch(cast(Launch, launch), server.pid)
        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: tritonserver.state_of(server.pid) == "T")
        assert (watch.processes(), watch.silence(), asked) == (None, None, [])
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: tritonserver.state_of(server.pid) != "T")
        assert (watch.processes(), watch.silence(), asked) == (None, None, ["recommend"])
    finally:
        server.kill()
        server.communicate()
