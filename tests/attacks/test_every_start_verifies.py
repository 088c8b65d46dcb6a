"""No start of a server, the first or a later one, serves files that are not as they were made."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from clients.recommender import Recommender
from deploy import supervisor
from deploy.launcher import RunningServer, running_server
from ensembles.local import LocalRecommender
from genrec import manifest
from genrec.engine.instructions import engine_of
from genrec.errors import ArtifactError
from genrec.manifest import Digests, verify
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server
from tests.tiny import other_generator


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
def test_a_restart_does_not_serve_what_was_damaged_meanwhile(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits, as a build may be under way; a sound file ends the wait, and so does time."""
    path = engine_of(artifact, "openvino") / "prefill.bin"
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.1)
    with running_server(artifact, beam_width=8, ensembles=("recommend",)) as server:
        sound = path.read_bytes()
        damage(path)
        shutil.rmtree(path.parent / "cache")
        os.kill(stub_of(server.pid, "generate"), signal.SIGKILL)
        until(lambda: caplog.text.count("the start failed") > supervisor.FAILED_STARTS)
        path.write_bytes(sound)
        until(lambda: server.restarts)
        monkeypatch.setattr(supervisor, "BUILD_S", 0.0)
        damage(path)
        os.kill(stub_of(server.pid, "validity_lookup"), signal.SIGKILL)
        until(lambda: server.supervisor.error or server.restarts > 1)
        said = f"{path}: is not the file that stage `openvino` made; `genrec build {artifact}` makes it anew"
        assert isinstance(server.supervisor.error, ArtifactError) and str(server.supervisor.error) == said
    with pytest.raises(ArtifactError, match=str(path)), running_server(artifact, beam_width=8):
        pass


def answers(server: RunningServer, model: str) -> list[int]:
    with Recommender(server.grpc_url, model=model) as recommender:
        return recommender.recommend([], 5).item_ids.tolist()


@pytest.mark.serving
@pytest.mark.long
def test_a_model_that_died_waits_until_what_is_served_is_sound(artifact: Path) -> None:
    """While a build is under way, say; the others go on, and nothing that was not verified is loaded."""
    path = artifact / "model" / "model.safetensors"
    good = path.read_bytes()
    with brief_server(artifact, beam_width=8, ensembles=("recommend", "recommend_draft")) as server:
        pid, before = server.pid, answers(server, "recommend_draft")
        damage(path)
        dead = stub_of(server.pid, "draft_beam")
        os.kill(dead, signal.SIGKILL)
        until(lambda: server.supervisor._unsound_since)
        assert answers(server, "recommend") and not server.restarts and not server.supervisor.error
        path.write_bytes(good)
        until(lambda: server.restarts)
        assert answers(server, "recommend_draft") == before and server.pid == pid
        assert stub_of(server.pid, "draft_beam") != dead


@pytest.mark.serving
@pytest.mark.long
def test_models_of_two_artifacts_never_work_together(artifact: Path) -> None:
    """One that died after another artifact was built in the place of the first takes the whole server along."""
    with brief_server(artifact, beam_width=8, ensembles=("recommend", "recommend_draft")) as server:
        pid = server.pid
        other_generator(artifact, seed=1)
        os.kill(stub_of(server.pid, "validity_lookup"), signal.SIGKILL)
        until(lambda: server.restarts)
        assert server.pid != pid
        with LocalRecommender(artifact, 8) as local:
            (want,) = local.recommend([[]], 5)
        assert answers(server, "recommend") == want["item_ids"][0].tolist()
