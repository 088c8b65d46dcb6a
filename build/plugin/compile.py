"""Compile the attention kernel: for GPUs with nvcc, for this CPU (emulated) with g++, to PTX; and load the result."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from genrec.errors import ArtifactError

FOLDER = Path(__file__).resolve().parent
SOURCES = ("xattention.h", "xattention.cuh", "device.cuh", "xattention.cu")
ARCHITECTURES = (80, 89, 90)
TYPES = {"f32": 0, "f16": 1, "bf16": 2}
TENSORS = 8  # pointers of a call: six inputs, the output, the workspace


class Shape(ctypes.Structure):
    """XAttentionShape of xattention.h: B, W, H, G, D, S, U, splits of S, and one of TYPES."""

    NAMES = ("requests", "beams", "heads", "kv_heads", "size", "span", "unshared", "splits", "type")
    _fields_ = [(name, ctypes.c_int) for name in NAMES]


def compile_for_gpu(
    out: Path, architectures: Sequence[int] = ARCHITECTURES, extra: Sequence[str] = ()
) -> str:
    """Shared library with machine code for every architecture; returns the compiler's resource report."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    return run(
        ["nvcc", "-std=c++17", "-O3", "--threads=0", "-Xptxas=-v", "-shared", "-Xcompiler=-fPIC", *codes, *extra,
         str(FOLDER / "xattention.cu"), "-o", str(out)]
    )  # fmt: skip


def compile_for_host(out: Path, extra: Sequence[str] = ()) -> None:
    """The same kernels for this CPU, thread by thread (`emulate.hpp`): slow, and for tests only."""
    flags = ["-O1", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC"]
    run(["g++", *flags, *extra, "-x", "c++", str(FOLDER / "xattention.cu"), "-o", str(out)])


def compile_ptx(out: Path, architecture: int = 90) -> None:
    """PTX of the entry points in quick.cu, for ahead-of-time quick plugins."""
    run(
        ["nvcc", "-std=c++17", "-O3", "-ptx", f"-arch=compute_{architecture}", str(FOLDER / "quick.cu"), "-o", str(out)]
    )  # fmt: skip


def load(path: Path) -> ctypes.CDLL:
    """A compiled library, with the types of xattention.h. Raises ArtifactError."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ArtifactError(path, f"cannot be loaded: {error}") from error
    shape = ctypes.POINTER(Shape)
    library.xattention_splits.argtypes = [shape, ctypes.c_int]
    for function in (library.xattention_workspace, library.xattention_counters):
        function.argtypes, function.restype = [shape], ctypes.c_size_t
    library.xattention.argtypes = [shape, *[ctypes.c_void_p] * (TENSORS + 1)]
    return library


def run(command: list[str]) -> str:
    """What a compiler says. Raises ArtifactError where it is not there or fails."""
    if shutil.which(command[0]) is None:
        raise ArtifactError(command[0], "is not on PATH; needed to compile the attention kernel")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ArtifactError(command[-1], f"{command[0]} failed:\n{done.stderr}{done.stdout}")
    return done.stderr + done.stdout
