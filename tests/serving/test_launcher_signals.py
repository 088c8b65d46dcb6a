"""A signal in the moment in which a server begins to answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy import launcher, supervisor
from deploy.launch import Stopped
from deploy.launcher import running_server
from tests.serving.servers import brief_server

pytestmark = pytest.mark.serving


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_signal_that_comes_as_soon_as_it_serves_ends_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for server.json may end the launcher before it has said that it serves."""
    before = psutil.Process().children()  # other tests of this process have servers too
    monkeypatch.setattr(launcher.log, "info", interrupted)
    with pytest.raises(KeyboardInterrupt), brief_server(tiny, run_dir=tmp_path, ensembles=("recommend",)):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["server.log"]
    begun = [each for each in psutil.Process().children() if each not in before]
    assert not [each for each in begun if "tritonserver" in each.name()]


def test_a_signal_while_it_is_written_leaves_no_server_json(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(_: supervisor.Supervisor, on_start: Callable[[], None]) -> None:
        on_start()
        assert (tmp_path / "server.json").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor.Supervisor, "start_and_wait", written)
    with pytest.raises(KeyboardInterrupt), running_server(tiny, run_dir=tmp_path):
        pass
    assert not (tmp_path / "server.json").exists()


def test_a_start_that_is_broken_off_leaves_no_run_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a rollout's server. The log of one that failed is kept in it."""
    made: list[Path] = []

    def broken_off(*_: Any, **__: Any) -> None:
        made.extend(tmp_path.iterdir())
        raise Stopped("stopped while starting", tmp_path / "none", 0)

    monkeypatch.setattr(supervisor.Supervisor, "start_and_wait", broken_off)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Stopped), running_server(tiny):
        pass
    assert len(made) == 1 and not list(tmp_path.iterdir())
