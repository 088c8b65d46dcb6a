"""The thread that owns a server, with a process that never answers in the server's place."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import probe, supervisor, tritonserver
from deploy.launch import Launch, LaunchError
from deploy.supervisor import Supervisor
from deploy.watch import FAILED_PROBES, Trouble, Watch
from genrec.errors import ArtifactError
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


@contextmanager
def supervised(about: Launch, on_start: Callable[[], None] = lambda: None) -> Iterator[Supervisor]:
    """A server that is taken for ready at once, and answers all probes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "_not_ready", lambda *_: "")
        patch.setattr(probe, "infer_all", lambda *_: {})
        patch.setattr(supervisor, "LOOK_AGAIN_S", 0.0)
        running = Supervisor(replace(about, ensembles=("recommend",), probe_every_s=0.01))
        running.start_and_wait(on_start)
        try:
            yield running
        finally:
            running.stop()


@pytest.mark.parametrize(("failing", "restarts"), [(FAILED_PROBES - 1, 0), (FAILED_PROBES, 1)])
def test_looks_that_fail_count_as_failed_probes(tmp_path: Path, failing: int, restarts: int) -> None:
    """A file may hold what its reader never thought of."""
    looks: list[int] = []

    def item() -> int:
        looks.append(len(looks))
        if 1 <= looks[-1] <= failing:
            raise NotImplementedError
        return 0

    with supervised(replace(launch(tmp_path), item=item)) as running:
        until(lambda: len(looks) > 3 * FAILED_PROBES or running.error)
        assert (running.restarts, running.error) == (restarts, None)


@pytest.mark.parametrize("model", ["", "decode"], ids=["server", "model"])
def test_a_manifest_that_cannot_be_read_is_waited_for_by_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Whether the whole server is in trouble or one model of it."""
    told = iter([Trouble("something has died", frozenset(filter(None, [model])))])

    def unchanged() -> bool:
        raise ArtifactError("manifest.json", "cannot be read: Stale file handle")

    monkeypatch.setattr(Watch, "processes", lambda _: next(told, None))
    with supervised(replace(launch(tmp_path), unchanged=unchanged)) as running:
        first = running.pid
        until(lambda: running.restarts or running.error)
        assert running.error is None and running.pid not in (0, first)


def test_a_full_disk_does_not_restart_a_server_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tells of it is written when there is room."""
    troubles = iter([Trouble("something has died")])
    starts: list[str] = []
    tries: list[int] = []  # how many servers had been started

    def write() -> None:
        tries.append(len(starts))
        if 2 <= len(tries) <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Watch, "processes", lambda _: next(troubles, None))
    with supervised(replace(launch(tmp_path), prepare=lambda: starts.append("a server")), write) as running:
        until(lambda: len(tries) == 4 or running.error)
        assert running.error is None and tries == [1, 2, 2, 2], "the second server is there from then on"
