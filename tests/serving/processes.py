"""Looking after a server's processes from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from deploy import tritonserver

PATIENCE_S = 120.0  # where another suite and its servers have the same two cores


def until(done: Callable[[], object], look: Callable[[], object] = str) -> None:
    """Wait for it, as long as a busy machine may need; a failure shows what a `look` finds."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, look()
        time.sleep(0.05)


def left_of(session: int) -> list[tritonserver.Member]:
    """What a server that has ended left behind. Its stubs' zombies are nothing, and init reaps them when it comes by;
    the server's own is for its launcher to reap.
    """
    return [m for m in tritonserver.members(session) if m.pid == session or m.state not in "ZX"]


def stub_of(session: int, model: str) -> int:
    """Pid of the process that runs a model; `session` is the server's pid."""
    for pid in tritonserver.living_stubs(session):
        if f"/{model}/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError(f"no process runs {model}")
