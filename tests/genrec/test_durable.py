"""What takes the place of another file survives a loss of power: the order in which the disk is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec import manifest
from genrec.files import write_whole
from genrec.tensor_file import write_tensors


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Calls, and the names of the files or folders that they were about."""
    calls: list[tuple[str, str]] = []

    def noted(call: str, name_of: Callable[..., Any]) -> None:
        real = getattr(os, call)

        def note(*arguments: Any) -> None:
            calls.append((call, Path(name_of(*arguments)).relative_to(tmp_path).as_posix()))
            real(*arguments)

        monkeypatch.setattr(os, call, note)

    noted("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    noted("replace", lambda _, path: path)
    return calls


@pytest.mark.parametrize(
    "write",
    [lambda path: write_whole(path, "now 2"), lambda path: write_tensors(path, {"a": np.zeros(2)})],
    ids=["pointer", "model"],
)
def test_content_comes_before_its_name(
    told: list[tuple[str, str]], tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "file")
    assert told == [("fsync", "file.partial"), ("replace", "file"), ("fsync", ".")]


def test_files_of_a_stage_come_before_the_manifest(told: list[tuple[str, str]], tmp_path: Path) -> None:
    """Of a training it is what its checkpoint is removed for; a configuration is written by no rename."""
    outputs = [tmp_path / "model" / name for name in ("config.json", "model.safetensors")]
    outputs[0].parent.mkdir()
    for path in outputs:
        path.write_text("{}")
    manifest.record(tmp_path, "train", "key", outputs, {})
    files = ["model", "model/config.json", "model/model.safetensors"]
    assert {("fsync", name) for name in (".", *files)} == set(told[:4])
    last = [("fsync", "manifest.json.partial"), ("replace", "manifest.json"), ("fsync", ".")]
    assert told[4:] == last
    told.clear()
    aside = tmp_path / "aside"
    aside.write_text("[]")
    manifest.replace(tmp_path, "train", manifest.read(tmp_path)["train"], {aside: outputs[1]}, {})
    first = [("fsync", "manifest.json.partial"), ("fsync", ".")]  # what it is completed from
    assert told == [*first, ("fsync", "aside"), ("replace", files[2]), ("fsync", "model"), *last]
