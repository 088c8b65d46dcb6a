"""Where a server is started, with a program in its place that says where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy import tritonserver


@pytest.mark.parametrize("removed", [False, True])
def test_a_server_starts_though_its_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """As that of a release which another has followed. Libraries that its models import cannot do without one."""
    folder, log = tmp_path / "release", tmp_path / "server.log"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if removed:
        folder.rmdir()
    with tritonserver.start(["/bin/readlink", "/proc/self/cwd"], dict(os.environ), log) as process:
        process.wait()
    assert log.read_text().strip() == ("/" if removed else str(folder))
