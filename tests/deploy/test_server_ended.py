"""How a server is ended, with a program in its place that does on SIGTERM what it is told to do."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from deploy import tritonserver
from tests.serving.processes import until

NEVER_S = 100_000.0
# Starts its one stub, argv[1]. SIGTERM ends that where argv[2] says so, and later the server itself where argv[3] does.
SERVER = """
import signal, subprocess, sys, time
stub = subprocess.Popen([sys.argv[1], "100000"])

def end(*_):
    if sys.argv[2] == "stub":
        stub.terminate()
        stub.wait()
    if sys.argv[3] == "server":
        time.sleep(3 * {last_s})
        sys.exit(7)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""

# As the first process of a container, which is given the children of those that end.
FIRST = """
import ctypes, subprocess
from deploy import tritonserver

assert not ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
shell = ["sh", "-c", "sleep 100000 & echo ready; exec sleep 100000"]
with subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) as server:
    server.stdout.readline()
    tritonserver.end(server, grace_s=0)
    print(tritonserver.members(server.pid))
"""


def ended(folder: Path, *does: str, grace_s: float = NEVER_S) -> int:
    """What a server returns that does so on SIGTERM; nothing of it is left."""
    stub = shutil.copy(str(shutil.which("sleep")), folder / "triton_python_backend_stub")
    program = SERVER.format(last_s=tritonserver.LAST_S)
    with subprocess.Popen(
        [sys.executable, "-c", program, stub, *does], stdout=subprocess.PIPE, start_new_session=True
    ) as server:
        assert server.stdout and server.stdout.readline() == b"ready\n"
        until(lambda: tritonserver.living_stubs(server.pid))
        tritonserver.end(server, grace_s)
        assert [m for m in tritonserver.members(server.pid) if m.state not in "ZX"] == []
        return server.wait()


def test_a_server_whose_models_have_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Triton looks once a second whether it may end, and lets its own threads do so."""
    assert ended(tmp_path, "stub", "stays") == -signal.SIGKILL


def test_a_server_whose_models_still_answer_is_waited_for(tmp_path: Path) -> None:
    assert ended(tmp_path, "none", "server") == 7


def test_a_server_that_does_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    assert ended(tmp_path, "none", "stays", grace_s=0.1) == -signal.SIGKILL


def test_the_first_process_of_a_container_keeps_no_zombies() -> None:
    """Each restart would leave some: in the end no process can be started there."""
    said = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
