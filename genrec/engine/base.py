"""What every engine offers the steps: a prefill of a batch and a decode of one request's beams, into arena memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from genrec.arena import Region, Row
from genrec.errors import InputError
from genrec.kv import Layout


class Engine(Protocol):
    """Reads and writes the KV and the logits in the arena, in place."""

    layout: Layout

    def prefill(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], region: Region) -> None:
        """tokens [B, S] padded on the right, lengths [B] >= 1: first-level logits and shared KV go to `region`."""

    def decode(self, level: int, codes: NDArray[np.int64], length: int, row: Row) -> None:
        """codes [W] of level `level - 1`: reads the row's KV, leaves logits [W, T_level] and the new unshared KV."""

    def draft_states(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """tokens [B, S] with placeholders after each row's history, lengths [B] of the histories: [B, 1 + L, hidden].

        One pass for a whole draft (NEZHA, section 3.2); no KV is kept.
        """


def _openvino(folder: Path, layout: Layout, threads: int) -> Engine:
    from genrec.engine.openvino import OpenVinoEngine

    return OpenVinoEngine(folder, layout, threads)


def _cuda(folder: Path, layout: Layout, threads: int) -> Engine:
    from genrec.engine.cuda import CudaEngine  # imports torch, which no other target needs

    return CudaEngine(folder, layout)


TARGETS: dict[str, Callable[[Path, Layout, int], Engine]] = {"openvino": _openvino, "cuda": _cuda}


def load_engine(target: str, folder: Path, layout: Layout, threads: int) -> Engine:
    """The engine of `target` built in `folder`. Raises InputError (unknown target), ArtifactError (bad files)."""
    if target not in TARGETS:
        raise InputError("target", f"is {target!r}", f"one of {', '.join(TARGETS)}")
    return TARGETS[target](folder, layout, threads)
