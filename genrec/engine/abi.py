"""The C ABI of the attention kernel, repeated from `build/plugin/xattention.h`: in Python it is declared here alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

from genrec.errors import ArtifactError

TYPES = {"f32": 0, "f16": 1, "bf16": 2}
TENSORS = 8  # pointers of a call: six inputs, the output, the workspace


class Shape(ctypes.Structure):
    """XAttentionShape: B, W, H, G, D, S, U, splits of S, and one of TYPES."""

    NAMES = ("requests", "beams", "heads", "kv_heads", "size", "span", "unshared", "splits", "type")
    _fields_ = [(name, ctypes.c_int) for name in NAMES]


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with the types of its functions. Raises ArtifactError."""
    try:
        return _typed(ctypes.CDLL(str(path)))
    except (
        OSError,
        AttributeError,
    ) as error:  # no library, or one without a function: it was built before it
        raise ArtifactError(path, f"cannot be loaded: {error}") from error


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    shape = ctypes.POINTER(Shape)
    library.xattention_kernel.argtypes, library.xattention_kernel.restype = [shape], ctypes.c_char_p
    library.xattention_splits.argtypes = [shape, ctypes.c_int]
    for function in (library.xattention_workspace, library.xattention_counters):
        function.argtypes, function.restype = [shape], ctypes.c_size_t
    library.xattention.argtypes = [shape, *[ctypes.c_void_p] * (TENSORS + 1)]
    return library
