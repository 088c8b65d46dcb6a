"""Compiled graphs of OpenVINO, kept from start to start: a process that finds its own starts faster.

OpenVINO's cache believes what lies in it: one bit flipped there was seen to give other answers, and new weights under
an unchanged graph were not looked at. So a graph's blob is named by a hash of all that it follows from, and ends with
the hash of its own content; what does not match is dropped and made anew. Without a folder to write to, nothing is
kept.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.engine.quiet_openvino import ov
from genrec.manifest import digest_file

DIGEST = hashlib.sha256().digest_size
ABANDONED_S = 3600.0  # no graph takes as long to be written


class KeptGraphs:
    """The blobs in a folder, of graphs that read the files `libraries` too. Several processes may use it at once."""

    def __init__(self, folder: Path, libraries: list[Path]) -> None:
        self._folder, self._libraries = folder, libraries
        self._mapped: list[NDArray[np.uint8]] = []  # graphs compute with constants where they lie in a blob

    def compile(self, core: ov.Core, graph: Path, hints: Mapping[str, Any]) -> Any:
        """The compiled graph, from its blob if there is a sound one. Raises RuntimeError when OpenVINO cannot."""
        engine = self._digest(core, graph)
        blob = self._folder / f"{graph.stem}-{engine}-{_digest_of(hints)}.blob"
        compiled = self._read(core, blob, hints)
        if compiled is None:
            compiled = core.compile_model(str(graph), "CPU", hints)
            try:
                self._drop_former(graph.stem, engine)
                _write(blob, compiled)
            except OSError:  # read-only, full, or another process is faster: then it starts without
                pass
        return compiled

    def _read(self, core: ov.Core, blob: Path, hints: Mapping[str, Any]) -> Any:
        """The compiled graph of a sound blob, else None."""
        try:
            with blob.open("rb") as file:
                # "Copy" as OpenVINO takes no read-only arrays; it writes nothing.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):  # there is none, or an empty one
            return None
        whole = memoryview(mapped)
        if hashlib.sha256(whole[:-DIGEST]).digest() != whole[-DIGEST:]:
            return None
        content = np.frombuffer(whole[:-DIGEST], np.uint8)
        try:
            compiled = core.import_model(ov.Tensor(content, shared_memory=True), "CPU", hints)
        except RuntimeError:  # OpenVINO has other reasons not to take it
            return None
        self._mapped.append(content)
        mapped.madvise(mmap.MADV_DONTNEED)  # most of it has been laid out anew
        return compiled

    def _digest(self, core: ov.Core, graph: Path) -> str:
        """Of all that a blob follows from but the hints. Weights that are inputs of a graph are not in its blob."""
        files = [graph, graph.with_suffix(".bin"), *self._libraries]
        found = {path.name: digest_file(path) for path in files if path.is_file()}
        return _digest_of([found, ov.get_version(), core.get_property("CPU", "FULL_DEVICE_NAME")])

    def _drop_former(self, name: str, engine: str) -> None:
        """Blobs of the graph as it was before, and what processes left that were killed while they wrote."""
        for path in self._folder.glob(f"{name}-*"):
            partial = path.suffix == ".partial" and time.time() - path.stat().st_mtime < ABANDONED_S
            if not partial and not (path.suffix == ".blob" and path.name.startswith(f"{name}-{engine}-")):
                path.unlink(missing_ok=True)


def _digest_of(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _write(blob: Path, compiled: Any) -> None:
    """The blob appears whole or not at all. Raises OSError."""
    blob.parent.mkdir(exist_ok=True)
    content = compiled.export_model().getbuffer()
    partial = blob.with_suffix(f".{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.write(hashlib.sha256(content).digest())
        os.replace(partial, blob)
    finally:
        partial.unlink(missing_ok=True)
