"""safetensors files of our own: their metadata say which format and version they are of."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from genrec.errors import ArtifactError
from genrec.files import check_regular

LENGTH = struct.Struct("<Q")  # of the header, before it
KINDS = {"F32": np.float32, "I64": np.int64}  # that are mapped


def read_tensors(path: Path, kind: str, version: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Metadata and tensors of a safetensors file whose metadata names this format and version.

    Raises ArtifactError for another format; what the library raises for a damaged file (many types) is the caller's.
    """
    metadata = read_metadata(path, kind, version)
    with safe_open(path, framework="numpy") as file:
        return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_metadata(path: Path, kind: str, version: str) -> dict[str, str]:
    """As `read_tensors`, without the tensors."""
    metadata = read_plain_metadata(path)
    if (metadata.get("format"), metadata.get("version")) != (kind, version):
        raise ArtifactError(path, f"is not a {kind} file of version {version}")
    return metadata


def read_plain_metadata(path: Path) -> dict[str, str]:
    """Metadata of any safetensors file; what the library raises for a damaged one is the caller's."""
    with safe_open(check_regular(path), framework="numpy") as file:
        metadata: dict[str, str] = file.metadata() or {}
    return metadata


def mapped_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file where they lie. What is written to them stays in this process.

    The file must not be written to while they live; another in its place does no harm. Raises ArtifactError.
    """
    try:
        whole = np.memmap(check_regular(path), np.uint8, "c").view(np.ndarray)
        start = LENGTH.size + LENGTH.unpack(whole[: LENGTH.size].tobytes())[0]
        header = json.loads(whole[LENGTH.size : start].tobytes())
        header.pop("__metadata__", None)
        return {name: _tensor(whole[start:], **about) for name, about in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ArtifactError(path, f"is no readable safetensors file: {error!r}") from error


def _tensor(
    content: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    first, last = data_offsets
    if not 0 <= first <= last <= len(content):
        raise ValueError(f"a tensor lies at {first} to {last} of {len(content)} bytes")
    return content[first:last].view(KINDS[dtype]).reshape(shape)
