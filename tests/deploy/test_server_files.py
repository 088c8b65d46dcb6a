"""What the launcher looks at before it starts the embedded server."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy import launcher, server_files
from deploy.server_files import (
    LIBRARY,
    STUB,
    UTILITIES,
    ServerFiles,
    check_libraries,
    check_numpy,
    find_server,
)
from ensembles.served import served
from genrec.errors import ArtifactError


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter; it says what stands in the file `says` beside it."""
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/says\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def wheel_s(folder: Path, of: str = "pytriton") -> ServerFiles:
    stub = folder / of / STUB
    return ServerFiles(stub, stub, stub, stub)


@pytest.mark.parametrize("version", ["2.0.0", "2.5.2", "10.1"])
def test_numpy_2_is_refused_before_it_reads_other_numbers_than_were_sent(
    python: Path, tmp_path: Path, version: str
) -> None:
    (tmp_path / "says").write_text(f"{version}\n")
    with pytest.raises(ArtifactError, match=rf"{python}: has numpy {version}; .*pip install 'numpy<2'"):
        check_numpy(wheel_s(tmp_path))
    check_numpy(wheel_s(tmp_path, "opt"))  # a server of one's own


@pytest.mark.parametrize("version", ["1.26.4", ""])
def test_numpy_1_and_none_pass(python: Path, tmp_path: Path, version: str) -> None:
    """Without any the steps themselves say so."""
    (tmp_path / "says").write_text(version)
    check_numpy(wheel_s(tmp_path))


@pytest.mark.parametrize("lacks", ["", LIBRARY, STUB, UTILITIES])
def test_a_server_on_the_path_is_taken_with_the_backend_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """As in Triton's container, where the path may have a link to it. What it lacks is named."""
    server, backend = tmp_path / "opt" / "bin" / "tritonserver", tmp_path / "opt" / "backends" / "python"
    for file in (server, *(backend / name for name in (LIBRARY, STUB, UTILITIES) if name != lacks)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o755)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "tritonserver").symlink_to(server)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    if lacks:
        with pytest.raises(ArtifactError, match=f"backends/python/{lacks}: missing; needed to start"):
            find_server()
    else:
        assert find_server() == ServerFiles(server, *(backend / name for name in (LIBRARY, STUB, UTILITIES)))


def test_this_environment_passes() -> None:
    check_numpy(find_server())
    check_libraries(find_server())


@pytest.mark.parametrize("lacks", ["server", "stub"])
def test_libraries_that_the_loader_does_not_find_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Of the server and of what it starts; where the folders that they are given are looked in."""

    def listing(argv: list[Path], env: dict[str, str], **_: object) -> SimpleNamespace:
        assert env == {"LD_TRACE_LOADED_OBJECTS": "1", "LD_LIBRARY_PATH": "/ours:/theirs"}
        found = "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
        return SimpleNamespace(stdout=found + "\tlibre2.so.5 => not found\n" * (argv[0].name == lacks))

    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    monkeypatch.setattr(server_files.subprocess, "run", listing)
    files = ServerFiles(tmp_path / "server", tmp_path, tmp_path / "stub", tmp_path, (Path("/ours"),))
    with pytest.raises(ArtifactError, match=rf"{lacks}: shared libraries not found: libre2\.so\.5$"):
        check_libraries(files)


@pytest.mark.parametrize("draft", [True, False])
def test_of_a_read_only_installation_nothing_read_only_is_made_that_a_server_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: bool
) -> None:
    """Its configurations are added to, and its folders could not be emptied when it ends."""
    installed = shutil.copytree(launcher.REPOSITORY, tmp_path / "installed")
    for path in (installed, *installed.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)
    monkeypatch.setattr(launcher, "REPOSITORY", installed)
    models = tmp_path / "models"
    launcher._repository(served(3, draft=draft, ranker=True), models)
    written_to = [path for path in (models, *models.rglob("*")) if path.is_dir() or path.suffix == ".pbtxt"]
    assert [path for path in written_to if not path.stat().st_mode & 0o200] == []
