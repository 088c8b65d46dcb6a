"""A server's folder is its own: another would take its log and its token file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.launcher import running_server
from deploy.run_folder import hold
from genrec.errors import InputError


def test_a_folder_where_a_server_runs_is_not_another_s(tiny: Path, tmp_path: Path) -> None:
    held = hold(tmp_path)  # as a server that runs does
    with pytest.raises(InputError, match=r"run_dir: is .*, where a server runs"), running_server(
        tiny, run_dir=tmp_path
    ):  # fmt: skip
        pass
    assert list(tmp_path.iterdir()) == []
    os.close(held)
    os.close(hold(tmp_path))
