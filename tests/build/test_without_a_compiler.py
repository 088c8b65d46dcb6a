"""`genrec build` where there is no g++: engines are slower, and whoever waits for them learns why."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.openvino import engines
from genrec.engine.instructions import runs_here, sets_of
from genrec.models.config import ModelConfig


@pytest.mark.parametrize("there", [True, False])
def test_that_there_is_none_is_told(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not any(map(runs_here, sets_of("f32"))):
        pytest.skip("no AVX2: nothing would be compiled")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "model").mkdir()
    ModelConfig((4, 4), 8).save(tmp_path / "model" / "config.json")
    built: list[bool] = []

    def build(onnx: Path, folder: Path, kv_type: str, longest: int, operation: bool) -> None:
        folder.mkdir()
        built.append(operation)

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if there else None)
    monkeypatch.setattr(engines, "build_openvino", build)
    monkeypatch.setattr(engines, "libraries", lambda kv_type: {})
    assert engines.build_engines(tmp_path, "f32") and built == [there]
    told = "attention stays in OpenVINO's own nodes: there is no g++, which compiles faster ones"
    assert (told in capsys.readouterr().err) is not there
