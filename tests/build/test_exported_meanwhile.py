"""A model that another process exports while engines are built of what was exported before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.openvino import engines
from genrec.errors import ArtifactError
from genrec.manifest import read


def test_engines_of_two_exports_are_none(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are read one after the other."""
    artifact = Path(shutil.copytree(tiny, tmp_path / "artifact"))
    monkeypatch.setattr(engines, "GRAPHS", engines.GRAPHS + 1)  # as another release of ours builds them anew
    onnx, folder = artifact / "onnx", artifact / "engines" / "openvino"
    before, built = read(artifact)["openvino"], sorted(folder.rglob("*"))

    def exported_meanwhile(*_: object) -> None:
        again = Path(shutil.copytree(onnx, tmp_path / "again"))
        (again / "prefill.onnx").write_bytes(b"another")
        shutil.rmtree(onnx)
        again.rename(onnx)

    monkeypatch.setattr(engines, "build_openvino", exported_meanwhile)
    with pytest.raises(ArtifactError, match=r"prefill\.onnx: was made anew by another process meanwhile"):
        engines.build_engines(artifact, "f32")
    assert read(artifact)["openvino"] == before and sorted(folder.rglob("*")) == built
