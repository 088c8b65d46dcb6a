"""The thread that owns a server, with a process that never answers in the server's place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy import supervisor, tritonserver
from deploy.launch import LaunchError
from tests.deploy.launches import launch
from tests.serving.processes import until


def test_whoever_stops_a_server_that_does_not_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.0)
    monkeypatch.setattr(tritonserver, "KILLED_S", -1.0)  # it is over before anything can end
    watched = supervisor.Supervisor(launch(tmp_path))
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(watched.start_and_wait, lambda: None)
        until(lambda: watched.pid)
        pid = watched.pid
        with pytest.raises(
            TimeoutError, match=rf"processes \[.*{pid}.*\] of the server's session do not end"
        ):
            watched.stop()
        with pytest.raises(LaunchError, match="stopped while starting"):
            starting.result()
    until(lambda: all(member.state in "ZX" for member in tritonserver.members(pid)))
