"""Engines beside a later export than the one that they are made of, as between `genrec export` and `genrec build`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deploy.launcher import running_server
from ensembles.local import LocalRecommender
from genrec.engine.exported import check_engines
from genrec.errors import ArtifactError
from genrec.manifest import NAME, OF, read, record
from genrec.rank.head import FILE_NAME as HEAD
from genrec.settings import Settings

FILES = (
    "config.json", "model.safetensors", "draft.json", "draft.safetensors", "ranker.json", "ranker.safetensors",
    "hstu.json", "hstu.safetensors",
)  # fmt: skip
OF_FILES = {f"model/{name}": f"sha of {name}" for name in FILES}
MODELS = ("encode_history", "generate", "score_candidates", "draft_beam")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Of a generator with a ranker, built of what was exported."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / HEAD).touch()
    for stage in ("openvino", "export"):
        record(tmp_path, stage, "made", [], {OF: OF_FILES})
    return tmp_path


def exported(artifact: Path, changed: str | None) -> None:
    """Anew; None: one that adds a ranker."""
    before = {name: sha for name, sha in OF_FILES.items() if changed or "ranker" not in name}
    record(artifact, "openvino", "made", [], {OF: before})
    record(
        artifact,
        "export",
        "anew",
        [],
        {OF: {**OF_FILES, f"model/{changed}": "another"} if changed else OF_FILES},
    )


@pytest.mark.parametrize("changed", [*FILES, None])
def test_what_is_read_beside_engines_is_of_their_export(artifact: Path, changed: str | None) -> None:
    settings = Settings(artifact, artifact / "arena")
    check_engines(settings, MODELS)
    exported(artifact, changed)
    told = changed or "ranker.json, model/ranker.safetensors"
    if changed in ("model.safetensors", "hstu.json", "hstu.safetensors"):
        check_engines(settings, MODELS)
        return
    with pytest.raises(ArtifactError) as refused:
        check_engines(settings, MODELS)
    said = f"is of an earlier model/{told} than onnx/; `genrec build {artifact}` makes it anew"
    assert str(refused.value) == f"{artifact}/engines/openvino: {said}"


@pytest.mark.parametrize(
    ("changed", "given"),
    [
        ("ranker.json", {"models": ("generate",)}),
        ("draft.json", {"models": ("generate",)}),
        ("ranker.json", {"ranker": "hstu"}),
        ("ranker.json", {"ranker": "none"}),
        ("config.json", {"target": "cuda"}),  # which reads model/ itself
    ],
)  # fmt: skip
def test_what_is_not_read_may_be_another(artifact: Path, changed: str, given: dict[str, str]) -> None:
    exported(artifact, changed)
    models = given.pop("models", MODELS)
    check_engines(Settings(artifact, artifact / "arena", **given), models)


def test_artifacts_of_before_do_not_tell(artifact: Path) -> None:
    for facts in ({}, {OF: {}}):
        record(artifact, "openvino", "made", [], facts)
        check_engines(Settings(artifact, artifact / "arena"), MODELS)


def test_nothing_starts_with_engines_of_another_shape(tiny: Path, tmp_path: Path) -> None:
    """A server that came back so had three starts that failed, or answered with the one's length and the other's
    weights. It waits for `genrec build` now.
    """
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    stages = read(artifact)
    for stage, sha in (("export", "another"), ("openvino", "one")):
        stages[stage]["facts"][OF] = {"model/config.json": sha}
    (artifact / NAME).write_text(json.dumps(stages))
    refused = rf"engines/openvino: is of an earlier model/config.json than onnx/; `genrec build {artifact}`"
    with pytest.raises(ArtifactError, match=refused):
        LocalRecommender(artifact, 8)
    with pytest.raises(ArtifactError, match=refused), running_server(artifact, run_dir=tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / "server.log").exists()
