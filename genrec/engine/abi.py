"""The C ABI of the kernels, repeated from `build/plugin/xattention.h` and `fused.h`: in Python declared here alone."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from genrec.errors import ArtifactError

TYPES = {"f32": 0, "f16": 1, "bf16": 2}
TENSORS = 10  # pointers of a call of the attention: eight inputs, the output, the workspace


class Shape(ctypes.Structure):
    """XAttentionShape: B, W, H, G, D, S, U, splits of S, and one of TYPES."""

    NAMES = ("requests", "beams", "heads", "kv_heads", "size", "span", "unshared", "splits", "type")
    _fields_ = [(name, ctypes.c_int) for name in NAMES]


class Heads(ctypes.Structure):
    """FusedHeads: B, X, H, G, D, one of TYPES, and strides in elements of the tables and of k and v."""

    NAMES = ("requests", "positions", "heads", "kv_heads", "size", "type",
             "table_request", "table_position", "kv_request", "kv_position", "kv_head")  # fmt: skip
    _fields_ = [(name, ctypes.c_int64) for name in NAMES]


class Inherit(ctypes.Structure):
    """FusedInherit: planes, B, W', W, elements of the earlier tokens and of one, and one of TYPES."""

    NAMES = ("planes", "requests", "parents", "width", "size", "token", "type")
    _fields_ = [(name, ctypes.c_int64) for name in NAMES]


class Rows(ctypes.Structure):
    """FusedRows: rows, their size, and one of TYPES."""

    NAMES = ("rows", "size", "type")
    _fields_ = [(name, ctypes.c_int64) for name in NAMES]


class Expand(ctypes.Structure):
    """FusedExpand: B, W', F, T, P and W of a step of beam search."""

    NAMES = ("requests", "parents", "family", "size", "nodes", "width")
    _fields_ = [(name, ctypes.c_int64) for name in NAMES]


class Beams(ctypes.Structure):
    """FusedBeams: the addresses of five tensors."""

    NAMES = ("paths", "nodes", "scores", "parents", "bad")
    _fields_ = [(name, ctypes.c_void_p) for name in NAMES]


_ADDRESS, _FLOAT = ctypes.c_void_p, ctypes.c_float
# Per function what comes behind its shape; the last is the stream.
FUSED: dict[str, tuple[type[ctypes.Structure], list[Any]]] = {
    "fused_heads": (Heads, [*[_ADDRESS] * 8, _FLOAT, _ADDRESS]),
    "fused_inherit": (Inherit, [_ADDRESS] * 4),
    "fused_add_norm": (Rows, [*[_ADDRESS] * 4, _FLOAT, _ADDRESS]),
    "fused_swiglu": (Rows, [_ADDRESS] * 3),
    "fused_expand": (Expand, [*[_ADDRESS] * 4, *[ctypes.POINTER(Beams)] * 2, *[_ADDRESS] * 3]),
}


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with the types of its functions. Raises ArtifactError."""
    try:
        return _typed(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:  # no library, or one of earlier sources that lacks a function
        raise ArtifactError(
            path, f"cannot be loaded: {error}; `genrec build --target cuda` compiles it anew"
        ) from error


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    shape = ctypes.POINTER(Shape)
    library.xattention_kernel.argtypes, library.xattention_kernel.restype = [shape], ctypes.c_char_p
    library.xattention_splits.argtypes = [shape, ctypes.c_int]
    for function in (library.xattention_workspace, library.xattention_counters):
        function.argtypes, function.restype = [shape], ctypes.c_size_t
    library.xattention.argtypes = [shape, *[ctypes.c_void_p] * (TENSORS + 1)]
    for name, (given, rest) in FUSED.items():
        getattr(library, name).argtypes = [ctypes.POINTER(given), *rest]
    return library
