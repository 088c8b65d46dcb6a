"""The thread that owns a server, with a process that never answers in the server's place."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import server_log, supervisor, tritonserver
from deploy.launch import Launch, LaunchError, NoRoom
from deploy.supervisor import FAILED_STARTS, Supervisor
from deploy.watch import FAILED_PROBES, Trouble, Watch
from genrec.catalogue import agreement
from genrec.catalogue.agreement import Acknowledgement
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
        until(lambda: watched.pid and len(tritonserver.members(watched.pid)) > 1)
        pid = watched.pid
        with pytest.raises(TimeoutError, match=r"processes \[[0-9, ]+\] of the server's session do not end"):
            watched.stop()
        with pytest.raises(LaunchError, match="stopped while starting"):
            starting.result()
    until(lambda: all(member.state in "ZX" for member in tritonserver.members(pid)))


CRASHES = 'ulimit -c 0; echo >> "$1"; test $(wc -l < "$1") -gt 1 && exit 3; kill -s "$2" $$; sleep 600'


@pytest.mark.parametrize(("sent", "starts"), [("SEGV", 2), ("ABRT", 2), ("TERM", 1)])
def test_a_first_start_that_crashes_is_tried_once_more(tmp_path: Path, sent: str, starts: int) -> None:
    """Not one that somebody ended."""
    begun, status = tmp_path / "begun", 3 if starts > 1 else -signal.SIGTERM
    about = replace(launch(tmp_path), argv=lambda: ["/bin/sh", "-c", CRASHES, "server", str(begun), sent])
    with pytest.raises(LaunchError, match=rf"tritonserver ended with {status} while starting"):
        Supervisor(about).start_and_wait(lambda: None)
    assert begun.read_text() == "\n" * starts


class Planted(Watch):
    """Its looks at processes find, or raise, what stands in `found`, one after the other, and then nothing."""

    def __init__(self, about: Launch, session: int, found: list[Trouble | Exception | None]) -> None:
        super().__init__(about, session)
        self._found = found

    def processes(self) -> Trouble | None:
        found = self._found.pop(0) if self._found else None
        if isinstance(found, Exception):
            raise found
        return found


class Ready(Supervisor):
    """Its server is taken for ready at once, and watched by `Planted`."""

    def __init__(self, about: Launch, found: list[Trouble | Exception | None]) -> None:
        super().__init__(replace(about, probe_every_s=0.01))
        self._found = found

    def _not_ready(self, _: float) -> str:
        return ""

    def _start(self, timeout_s: float) -> Watch:
        super()._start(timeout_s)
        return Planted(self._launch, self.pid, self._found)


@contextmanager
def supervised(
    about: Launch, found: list[Trouble | Exception | None], on_start: Callable[[], None] = lambda: None
) -> Iterator[Supervisor]:
    running = Ready(about, found)
    running.start_and_wait(on_start)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.parametrize(("failing", "restarts"), [(FAILED_PROBES - 1, 0), (FAILED_PROBES, 1)])
def test_looks_that_fail_count_as_failed_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, restarts: int
) -> None:
    """A file may hold what its reader never thought of."""
    monkeypatch.setattr(supervisor, "LOOK_AGAIN_S", 0.0)
    found = [*[NotImplementedError()] * failing, None, None]
    with supervised(launch(tmp_path), found) as running:
        until(lambda: not found or running.error)
        assert (running.restarts, running.error) == (restarts, None)


def test_looks_that_fail_now_and_then_start_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_AGAIN_S", 0.0)
    sometimes = [*[NotImplementedError()] * (FAILED_PROBES - 1), *[None] * 10]
    with supervised(launch(tmp_path), found := 2 * sometimes) as running:
        until(lambda: not found or running.error)
        assert (running.restarts, running.error) == (0, None)


@pytest.mark.parametrize("models", [frozenset(), frozenset({"decode"})], ids=["server", "model"])
def test_a_manifest_that_cannot_be_read_is_waited_for_by_a_restart(
    tmp_path: Path, models: frozenset[str]
) -> None:
    """Whether the whole server is in trouble or one model of it."""

    def unchanged() -> bool:
        raise ArtifactError("manifest.json", "cannot be read: Stale file handle")

    about = replace(launch(tmp_path), unchanged=unchanged)
    with supervised(about, [Trouble("something has died", models)]) as running:
        first = running.pid
        until(lambda: running.restarts or running.error)
        assert running.error is None and running.pid not in (0, first)


@pytest.mark.parametrize("error", [NoRoom("/dev/shm", "needs much", "little"), ValueError("a bug")])
def test_a_restart_is_tried_again_as_long_as_what_is_wrong_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.01)
    starts: list[Exception | None] = []

    def prepare() -> None:
        starts.append(error if 0 < len(starts) <= FAILED_STARTS + 1 else None)
        if starts[-1]:
            raise error

    with supervised(replace(launch(tmp_path), prepare=prepare), [Trouble("it has died")]) as running:
        until(lambda: running.restarts or running.error)
        said = running.restarts, running.error, len(starts)
    passes = isinstance(error, NoRoom)
    assert said == ((1, None, FAILED_STARTS + 3) if passes else (0, error, FAILED_STARTS + 1))


def test_a_full_disk_does_not_restart_a_server_that_answers(tmp_path: Path) -> None:
    """What tells of it is written when there is room."""
    starts: list[str] = []
    tries: list[int] = []  # how many servers had been started

    def write() -> None:
        tries.append(len(starts))
        if 2 <= len(tries) <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    about = replace(launch(tmp_path), prepare=lambda: starts.append("a server"))
    with supervised(about, [Trouble("something has died")], write) as running:
        until(lambda: len(tries) == 4 or running.error)
        assert running.error is None and tries == [1, 2, 2, 2], "the second server is there from then on"


def test_a_run_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """As by who tidies the temporary folder, where it lies if nobody names another."""
    folder, found = tmp_path / "run", list[Trouble | Exception | None]()
    folder.mkdir()
    with supervised(launch(folder), found) as running:
        shutil.rmtree(folder)
        found.append(Trouble("something has died"))
        until(lambda: running.restarts or running.error)
        assert running.error is None
        assert [(each.name, folder.stat().st_mode & 0o77) for each in folder.iterdir()] == [("server.log", 0)]


def test_a_restart_that_is_broken_off_is_no_error(tmp_path: Path) -> None:
    """As by systemd, which tells all processes at once to end; a temporary run folder would stay."""
    starts: list[Supervisor | None] = [None]
    about = replace(launch(tmp_path), prepare=lambda: (each := starts.pop()) and each.stop(wait=False))
    with supervised(about, found := list[Trouble | Exception | None]()) as running:
        starts.append(running)
        found.append(Trouble("a model has died"))
        until(lambda: not starts)
    assert running.error is None


def test_a_reload_that_cannot_write_is_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /dev/shm is full, say."""

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Ready, "_reload", full)
    about = replace(launch(tmp_path), unchanged=lambda: True)
    with supervised(about, [Trouble("decode has died", frozenset({"decode"}))]) as running:
        first = running.pid
        until(lambda: running.restarts or running.error)
        assert running.error is None and running.pid not in (0, first)


def test_a_log_that_cannot_begin_anew_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with supervised(launch(tmp_path), found := [None] * 3) as running:
        monkeypatch.setattr(server_log, "MOST", -1)
        monkeypatch.setattr(server_log.os, "truncate", broken)
        until(lambda: not found or running.error)
        assert (running.restarts, running.error) == (0, None)
    told = [each for each in caplog.messages if "cannot begin anew" in each and str(tmp_path) in each]
    assert len(told) == 1 and "Input/output error" in told[0]


def test_every_line_says_which_server_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A router's servers tell of themselves in one log."""
    monkeypatch.setattr(supervisor, "LOOK_AGAIN_S", 0.0)
    abouts = [launch(tmp_path), launch(tmp_path)]
    found = [Trouble("100 % of it has died"), NotImplementedError()]
    with supervised(abouts[0], list(found)) as one, supervised(abouts[1], list(found)) as other:
        until(lambda: all(each.restarts for each in (one, other)))
        until(lambda: sum("look 1 of" in said for said in caplog.messages) == 2)
    for about in abouts:
        said = [each for each in caplog.messages if each.startswith(f"{about.ports.http_url}: ")]
        assert [each.removeprefix(f"{about.ports.http_url}: ").partition(" (pid")[0] for each in said] == [
            "restarting the server: 100 % of it has died",
            "the server answers again",
            f"look 1 of {FAILED_PROBES} failed: NotImplementedError: ",
        ]
    assert all(re.match(r"127\.0\.0\.1:\d+: ", each) for each in caplog.messages), (
        "of other tests' servers too"
    )


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_that_still_starts_is_given_no_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Nobody waits for an answer of it, and while Triton loads models it does not heed a signal."""
    graces: list[float] = []
    end = tritonserver.end
    monkeypatch.setattr(
        tritonserver, "end", lambda process, grace_s: (graces.append(grace_s), end(process, 0))
    )
    if answers:
        with supervised(launch(tmp_path), []):
            pass
    else:
        watched = Supervisor(launch(tmp_path))
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(watched.start_and_wait, lambda: None)
            until(lambda: watched.pid)
            watched.stop()
            with pytest.raises(LaunchError, match="stopped while starting"):
                starting.result()
    assert graces == [supervisor.GRACE_S if answers else 0.0]


def test_no_swap_waits_for_a_model_that_waits_for_a_sound_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a build writes into the served folder. Nobody is there to load the new version of the catalogue."""

    def unsound() -> None:
        raise ArtifactError("engine.json", "is not the file that stage `openvino` made")

    def prepare() -> None:
        agreement.create(about.swap, tmp_path, 1)
        for process in processes:
            agreement.acknowledge(about.swap, process, Acknowledgement(0, (1,), 1))

    with subprocess.Popen(["true"]) as died:
        died.wait()
    processes = [f"decode-{died.pid}", f"beam_search-{os.getpid()}"]
    monkeypatch.setattr(supervisor, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(tritonserver, "living_stubs", lambda _: [died.pid, os.getpid()])
    about = replace(launch(tmp_path), verify=unsound, prepare=prepare)
    found = list[Trouble | Exception | None]([Trouble("decode has died", frozenset({"decode"})), None])
    with supervised(about, found) as running:
        until(lambda: not found or running.error)
        assert list(agreement.acknowledgements(about.swap)) == processes[1:]
