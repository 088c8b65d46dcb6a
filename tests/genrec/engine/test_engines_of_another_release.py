"""Operations are linked to one release of OpenVINO: after an update, who starts a server is told what helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.engine.quiet_openvino import ov
from genrec.errors import ArtifactError

HERE = ov.get_version()


@pytest.mark.parametrize(
    ("built", "told"),
    [
        ("2025.3.0-19807-44526285f24", "of OpenVINO 2025.3.0, here is .*: `genrec build` makes it anew$"),
        (HERE, "cannot load it(?!.*genrec build)"),
        (None, "cannot load it(?!.*genrec build)"),
    ],
)
def test_engines_of_another_release_are_told_from_damaged_ones(
    tmp_path: Path, built: str | None, told: str
) -> None:
    (tmp_path / "engine.json").write_text(json.dumps({"openvino": built} if built else {}))
    (tmp_path / "operations_avx2_f32.so").write_bytes(b"linked to another libopenvino")
    with pytest.raises(ArtifactError, match=told):
        OpenVinoGraphs(tmp_path, "f32", 1)
