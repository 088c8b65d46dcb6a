"""Servers that a test starts for itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy import supervisor
from deploy.launcher import RunningServer, running_server
from deploy.ports import FIRST, is_free


@contextmanager
def brief_server(artifact: Path, **options: Any) -> Iterator[RunningServer]:
    """`running_server` that is killed at its end, as by a restart.

    An orderly end is seconds of waiting in Triton. Tests of the launcher and the session's own server have it.
    """
    with running_server(artifact, **options) as server:
        try:
            yield server
        finally:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(supervisor, "GRACE_S", 0.0)
                patch.setattr(supervisor, "GRACE_AFTER_RELOAD_S", 0.0)
                server.supervisor.stop()


def nobodys_traces() -> str:
    """Where spans may be sent, and nobody listens yet: on a port that no server chooses for itself."""
    port = next(each for each in random.sample(range(FIRST // 2, FIRST), 200) if is_free(each))
    return f"http://127.0.0.1:{port}/v1/traces"
