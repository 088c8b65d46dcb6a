"""Secrets and prompts are the owner's alone: in the process list, in /dev/shm, and by who may plant what there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import hidden, switch, tritonserver
from deploy.launcher import RunningServer
from genrec import leftovers
from genrec.catalogue import agreement

SAY = "import sys; print(sys.argv[1]); sys.stdout.flush(); sys.stdin.read()"
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a program as another user")


def test_the_process_list_shows_no_secret(server: RunningServer) -> None:
    environment = Path(f"/proc/{server.pid}/environ")
    assert server.token in environment.read_text()  # so the server has it from there
    assert environment.stat().st_mode & 0o077 == 0
    secrets = [
        word.rpartition("=")[2] for word in environment.read_text().split("\0") if hidden.HIDDEN in word
    ]
    assert len(secrets) == 4 and server.token in secrets
    for process in tritonserver.members(server.pid):
        shown = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert not [secret for secret in secrets if secret in shown], process


@as_root
def test_another_user_reads_no_secret(server: RunningServer) -> None:
    def read(name: str) -> subprocess.CompletedProcess[str]:
        command = ["cat", f"/proc/{server.pid}/{name}"]
        return subprocess.run(command, user=NOBODY, capture_output=True, text=True, check=False)

    assert hidden.PLACE in read("cmdline").stdout
    assert server.token not in read("cmdline").stdout
    assert read("environ").returncode != 0


def test_a_hidden_argument_arrives(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SAY.replace("; sys.stdin.read()", ""), "--key=sesame"]
    process = tritonserver.start(argv, dict(os.environ), tmp_path / "log", ("sesame",))
    assert process.wait(30) == 0
    assert (tmp_path / "log").read_text() == "--key=sesame\n"
    assert hidden.split(argv, ("sesame",))[0][3] == f"{hidden.PLACE}0"


def test_where_nobody_may_trace_the_server_starts_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = tmp_path / "guard.py"
    refused.write_text(tritonserver.GUARD.read_text().replace("libc.ptrace(PTRACE_TRACEME, 0, 0, 0)", "-1"))
    assert refused.read_text() != tritonserver.GUARD.read_text()
    monkeypatch.setattr(tritonserver, "GUARD", refused)
    argv = [sys.executable, "-c", SAY.replace("; sys.stdin.read()", ""), "--key=sesame"]
    process = tritonserver.start(argv, dict(os.environ), tmp_path / "log", ("sesame",))
    assert process.wait(30) == 0
    assert (tmp_path / "log").read_text() == "--key=sesame\n"
    assert "other users can read the server's secrets" in caplog.text


def test_shared_memory_is_the_owners_alone(server: RunningServer) -> None:
    files = leftovers.files_of(server.supervisor.prefix)
    assert any("-triton-" in path.name for path in files)
    assert {
        path.name: oct(path.stat().st_mode & 0o077) for path in files if path.stat().st_mode & 0o077
    } == {}


def test_what_another_user_plants_is_neither_waited_for_nor_removed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder as of a server that starts and never says anything."""
    planted = leftovers.SHM / f"{leftovers.own_prefix()}{leftovers.SWAP}"
    agreement.create(planted, tiny, 1)
    try:
        assert planted in switch.servers_of(tiny)
        monkeypatch.setattr(leftovers.os, "geteuid", lambda: planted.stat().st_uid + 1)
        assert planted not in switch.servers_of(tiny)
        leftovers.remove(planted.name)
        assert planted.is_dir()
    finally:
        shutil.rmtree(planted)
