"""safetensors files of our own: their metadata say which format and version they are of.

What is written appears whole or not at all, and others may read it: a server may run as someone else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from genrec.errors import ArtifactError
from genrec.files import check_regular, put

METADATA = "__metadata__"  # its name in a header
LENGTH = struct.Struct("<Q")  # of the header, before it
KINDS = {"F32": np.float32, "I32": np.int32, "I64": np.int64}  # that are mapped


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write one safetensors file."""
    with written(path) as partial:
        save_file(dict(tensors), partial, metadata=dict(metadata) if metadata else None)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` in the end; safetensors alone would leave it mode 0600."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        _sort_metadata(partial)
        partial.chmod(0o644)
        put(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sort_metadata(path: Path) -> None:
    """By name: safetensors writes them in an order that chance gives, and the sha256 of a file says which it is."""
    with path.open("r+b") as file:
        size = LENGTH.unpack(file.read(LENGTH.size))[0]
        header = json.loads(file.read(size))
        if METADATA in header:
            header[METADATA] = dict(sorted(header[METADATA].items()))
            text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
            if len(text) <= size:  # as it is unless the library writes other JSON; behind it come the tensors
                file.seek(LENGTH.size)
                file.write(text.ljust(size))


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Any error within is an ArtifactError about `path`, which is `what`: the library has types of its own."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        raise ArtifactError(path, f"not a readable {what}: {error}") from error


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


def mapped_tensors(path: Path, mode: Literal["c", "r"] = "c") -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file where they lie: to read, "r", or with "c" to write to, in this process alone.

    The file must not be written to while they live; another in its place does no harm. Raises ArtifactError.
    """
    try:
        whole = np.memmap(check_regular(path), np.uint8, mode).view(np.ndarray)
        start = LENGTH.size + LENGTH.unpack(whole[: LENGTH.size].tobytes())[0]
        header = json.loads(whole[LENGTH.size : start].tobytes())
        header.pop(METADATA, None)
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
