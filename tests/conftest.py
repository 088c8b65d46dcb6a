"""Fixtures every room shares: one tiny artifact and one real tritonserver for the whole session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.openvino.engines import build_engines
from deploy import leftovers
from deploy.launcher import RunningServer, running_server
from genrec.catalogue.items import Catalogue
from genrec.rank.options import RankerConfig
from tests.serving.processes import left_of
from tests.tiny import add_hstu, add_ranker, export_ranker, tiny_artifact

BEAM_WIDTH = 32


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole artifact with random weights, L=3, engines in f32. Tests copy it before they change it."""
    return tiny_artifact(tmp_path_factory.mktemp("tiny") / "artifact")


@pytest.fixture(scope="session")
def tiny_of_nodes(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` as it is built where there is no compiler: attention in OpenVINO's own nodes, not one operation."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("nodes") / "artifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        build_engines(artifact, "f32")
    return artifact


@pytest.fixture(scope="session")
def tiny_bf16(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with engines in bf16, as it is built where the CPU computes in it."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("bf16") / "artifact")
    build_engines(artifact, "bf16")
    return artifact


@pytest.fixture(scope="session")
def tiny_ranker(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with a ranker of random weights over the generator's own KV, for all orders; `split` is its first."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("ranker") / "artifact")
    add_ranker(artifact, RankerConfig(True, "all", 3))
    export_ranker(artifact)
    build_engines(artifact, "f32")
    return artifact


@pytest.fixture(scope="session")
def tiny_hstu(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with an HSTU ranker of random weights."""
    artifact = add_hstu(shutil.copytree(tiny, tmp_path_factory.mktemp("hstu") / "artifact"))
    build_engines(artifact, "f32")
    return artifact


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[RunningServer]:
    """A server on `tiny`; whatever its tests did, it leaves no process and no file behind."""
    with running_server(tiny, beam_width=BEAM_WIDTH) as running:
        yield running
        pid, prefix = running.pid, running.supervisor.prefix
        assert leftovers.files_of(prefix)
    assert left_of(pid) == []
    assert leftovers.files_of(prefix) == []
    assert not running.run_dir.exists()


@pytest.fixture(scope="session")
def items(tiny: Path) -> list[int]:
    """Item ids of the tiny catalogue."""
    return [int(i) for i in Catalogue.load(tiny / "catalogue.parquet").item_ids]
