"""A server that traces, and an artifact with users."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploy.launcher import RunningServer
from tests.serving.servers import brief_server, nobodys_traces
from training.data.histories import Histories

BEAM_WIDTH = 32


@pytest.fixture(scope="package")
def traced(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that sends spans to a port where nobody listens yet, and to no proxy, which would lead nowhere."""
    url = nobodys_traces()
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        patch.delenv("no_proxy", raising=False)
        with brief_server(tiny, beam_width=BEAM_WIDTH, trace_url=url, run_dir=folder) as running:
            patch.undo()
            yield running


@pytest.fixture(scope="session")
def shop(tiny: Path, items: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with four users."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("shop") / "artifact")
    offsets = np.array([0, 4, 9, 12, 20])
    Histories(np.array([10, 20, 30, 40]), np.array(items[:20]), offsets).save(
        artifact / "histories.parquet", ["a", "b", "c", "d"]
    )
    return artifact
