"""No start of a server, the first or a later one, serves files that are not as they were made."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from deploy.launcher import running_server
from genrec import manifest
from genrec.engine.instructions import engine_of
from genrec.errors import ArtifactError
from genrec.manifest import Digests, verify
from tests.serving.processes import stub_of, until


@pytest.fixture
def artifact(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "artifact", ignore=lambda *_: ["cache"]))


def damage(path: Path) -> None:
    """One bit in the middle; size and time of modification stay."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_every_file_that_is_served_is_verified(artifact: Path) -> None:
    verify(artifact, digests := Digests())
    for path in sorted(artifact.rglob("*")):
        if path.is_file() and path.name != manifest.NAME:
            good = path.read_bytes()
            damage(path)
            for digest in (manifest.digest_file, digests):
                with pytest.raises(ArtifactError, match=str(path)):
                    verify(artifact, digest)
            path.write_bytes(good)
    verify(artifact, digests)


def test_histories_may_be_left_out_but_not_be_others(artifact: Path) -> None:
    histories = artifact / "histories.parquet"
    histories.write_bytes(b"of users")
    manifest.record(artifact, "data", "key", [histories, artifact / "catalogue.parquet"], {})
    verify(artifact)
    damage(histories)
    with pytest.raises(ArtifactError, match=str(histories)):
        verify(artifact)
    histories.unlink()
    verify(artifact)
    (artifact / "catalogue.parquet").unlink()
    with pytest.raises(ArtifactError, match=r"catalogue\.parquet"):
        verify(artifact)


def test_a_file_is_read_again_only_when_it_may_have_changed(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = manifest.digest_file
    monkeypatch.setattr(manifest, "digest_file", lambda path: read.append(path.name) or plain(path))
    monkeypatch.setattr(manifest, "SETTLED_NS", -1)  # the copies are new
    digests = Digests()
    verify(artifact, digests)
    assert {"prefill.bin", "model.safetensors", "catalogue.parquet"} <= set(read)
    read.clear()
    verify(artifact, digests)
    assert read == []
    path = engine_of(artifact, "openvino") / "prefill.bin"
    shutil.copy2(path, artifact / "copy")
    os.replace(artifact / "copy", path)  # alike in all but the inode
    verify(artifact, digests)
    assert read == ["prefill.bin"]


def test_what_was_changed_a_moment_ago_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within a tick of the file system's clock leave the same times."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    digests, first = Digests(), path.stat()
    before = digests(path)
    path.write_bytes(b"two")
    monkeypatch.setattr(Path, "stat", lambda _: first)
    assert digests(path) != before


@pytest.mark.serving
def test_a_restart_does_not_serve_what_was_damaged_meanwhile(artifact: Path) -> None:
    path = engine_of(artifact, "openvino") / "prefill.bin"
    with running_server(artifact, beam_width=8, ensembles=("recommend",)) as server:
        damage(path)
        shutil.rmtree(path.parent / "cache")
        os.kill(stub_of(server.pid, "generate"), signal.SIGKILL)
        until(lambda: server.supervisor.error or server.restarts)
        said = f"{path}: is not the file that stage `openvino` made; `genrec build` makes it anew"
        assert isinstance(server.supervisor.error, ArtifactError) and str(server.supervisor.error) == said
    with pytest.raises(ArtifactError, match=str(path)), running_server(artifact, beam_width=8):
        pass


@pytest.mark.serving
def test_a_process_that_is_started_again_does_not_serve_what_was_damaged_meanwhile(artifact: Path) -> None:
    """Of a model that is loaded again while the others go on; only its own files are as they were."""
    with running_server(artifact, beam_width=8, ensembles=("recommend_draft",)) as server:
        damage(artifact / "model" / "model.safetensors")
        os.kill(stub_of(server.pid, "draft_beam"), signal.SIGKILL)
        until(lambda: server.supervisor.error or server.restarts)
        assert isinstance(server.supervisor.error, ArtifactError)
