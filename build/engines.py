"""`genrec build`: ONNX to engines of a target, and the catalogue to its validity index."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from build.validity import build_validity
from genrec.errors import InputError
from genrec.target import DEFAULT, runnable, target_of


def build_artifact(artifact: Path, target: str = DEFAULT) -> list[str]:
    """Build what is not there yet; returns the stages that did work. Raises InputError, ArtifactError."""
    row = target_of(target)
    if not row.builder:
        raise InputError(
            "target", f"{target} is built where it is served: {row.needs}", ", ".join(runnable())
        )
    stages = {"validity": build_validity, target: import_module(row.builder).build_engines}
    return [name for name, build in stages.items() if build(artifact)]
