"""Fixtures every room shares: one tiny artifact and one real tritonserver for the whole session."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from build.openvino.engines import build_engines
from deploy.launcher import RunningServer, running_server
from genrec import leftovers
from genrec.catalogue.items import Catalogue
from genrec.engine.openvino_core import SignalStack
from genrec.rank.options import RankerConfig
from tests.serving.processes import left_of
from tests.tiny import add_hstu, add_ranker, export_ranker, random_hstu_next, tiny_artifact

BEAM_WIDTH = 32
SIGNALS = SignalStack.of_this_thread()
WARMING = pytest.StashKey["subprocess.Popen[bytes]"]()
# Long ones; of the first, its last tests alone need it.
WITHOUT_ARTIFACT = ("test_linear.py", "test_operation.py")
# The machine may be busy with other things: how long an example takes says nothing.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_sessionstart(session: pytest.Session) -> None:
    """The pool's kernels are compiled while others wait for servers: whichever test is first would take 25 s."""
    if getattr(session.config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        command = ["nice", sys.executable, "-c", "from genrec.pool.warm import warm; warm()"]
        session.config.stash[WARMING] = subprocess.Popen(command, cwd=session.config.rootpath)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if warming := session.config.stash.get(WARMING, None):
        warming.kill()
        warming.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind the first file those that need no artifact: one process makes what most tests share, and the other would
    only wait for it.
    """
    first = items[0].path if items else None
    items.sort(key=lambda item: 0 if item.path == first else 1 if item.path.name in WITHOUT_ARTIFACT else 2)


def pytest_collection_finish() -> None:
    """All that was imported and collected stays to the end: no collection of garbage goes through it again."""
    gc.collect()
    gc.freeze()


def _made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object], start: Path | None = None
) -> Path:
    """The folder that `make` fills, in a copy of `start` if that is given: one for all test processes of a run."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "artifacts" / name
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            if start:
                shutil.copytree(start, partial)
            make(partial)
            partial.rename(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole artifact with random weights, L=3, engines in f32. Tests copy it before they change it."""
    return _made_once(tmp_path_factory, "tiny", tiny_artifact)


@pytest.fixture(scope="session")
def tiny_of_nodes(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` as it is built where there is no compiler: attention in OpenVINO's own nodes, not one operation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        return _made_once(tmp_path_factory, "nodes", lambda artifact: build_engines(artifact, "f32"), tiny)


@pytest.fixture(scope="session")
def tiny_bf16(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with engines in bf16, as it is built where the CPU computes in it."""
    return _made_once(tmp_path_factory, "bf16", lambda artifact: build_engines(artifact, "bf16"), tiny)


@pytest.fixture(scope="session")
def tiny_ranker(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with a ranker of random weights over the generator's own KV, for all orders; `split` is its first."""

    def make(artifact: Path) -> None:
        add_ranker(artifact, RankerConfig(True, "all", 3))
        export_ranker(artifact)
        build_engines(artifact, "f32")

    return _made_once(tmp_path_factory, "ranker", make, tiny)


@pytest.fixture(scope="session")
def tiny_hstu(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with an HSTU ranker of random weights."""
    return _made_once(
        tmp_path_factory, "hstu", lambda artifact: build_engines(add_hstu(artifact), "f32"), tiny
    )


@pytest.fixture(scope="session")
def tiny_hstu_next(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with an HSTU model of the next item, of random weights."""

    def make(artifact: Path) -> None:
        build_engines(add_hstu(artifact, random_hstu_next), "f32")

    return _made_once(tmp_path_factory, "hstu_next", make, tiny)


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


@pytest.fixture(autouse=True)
def signal_stack() -> None:
    """That of pytest. Cores of OpenVINO that earlier tests made themselves leave one that is gone (`new_core`)."""
    SIGNALS.use()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What goes, goes by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def items(tiny: Path) -> list[int]:
    """Item ids of the tiny catalogue."""
    return [int(i) for i in Catalogue.load(tiny / "catalogue.parquet").item_ids]
