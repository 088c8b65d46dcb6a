"""safetensors files of our own: their metadata say which format and version they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open

from genrec.errors import ArtifactError
from genrec.files import check_regular


def read_tensors(path: Path, kind: str, version: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Metadata and tensors of a safetensors file whose metadata names this format and version.

    Raises ArtifactError for another format; what the library raises for a damaged file (many types) is the caller's.
    """
    metadata = read_metadata(path, kind, version)
    with safe_open(path, framework="numpy") as file:
        return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_metadata(path: Path, kind: str, version: str) -> dict[str, str]:
    """As `read_tensors`, without the tensors."""
    with safe_open(check_regular(path), framework="numpy") as file:
        metadata: dict[str, str] = file.metadata() or {}
    if (metadata.get("format"), metadata.get("version")) != (kind, version):
        raise ArtifactError(path, f"is not a {kind} file of version {version}")
    return metadata
