"""Compile the kernels: for GPUs with nvcc, for this CPU (emulated) with g++."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from genrec.compiled import compiled, run

FOLDER = Path(__file__).resolve().parent
SOURCES = (
    "xattention.h", "rows.cuh", "xattention.cuh", "device.cuh", "hopper.cuh", "hopper_device.cuh",
    "hopper_launch.cuh", "xattention.cu", "fused.h", "fused_device.cuh", "fused.cuh", "select.cuh", "fused.cu",
)  # fmt: skip
COMPILED = tuple(name for name in SOURCES if name.endswith(".cu"))
ARCHITECTURES, PORTABLE = ("80", "89", "90a"), "89"


def architecture_of(major: int, minor: int) -> str:
    """What to compile for on a device of this capability: 90a is 90 with what Hopper alone has, which is used."""
    return f"{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def compile_for_gpu(
    out: Path, architectures: Sequence[str] = ARCHITECTURES, extra: Sequence[str] = ()
) -> str:
    """Shared library with machine code for every architecture; returns the compiler's resource report.

    Of PORTABLE it has PTX too, which drivers compile for cards of later years.
    """
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    codes += [f"-gencode=arch=compute_{a},code=compute_{a}" for a in architectures if a == PORTABLE]
    return run(
        ["nvcc", "-std=c++17", "-O3", "--threads=0", "-Xptxas=-v", "-shared", "-Xcompiler=-fPIC", *codes, *extra,
         *(str(FOLDER / name) for name in COMPILED), "-o", str(out)]
    )  # fmt: skip


def compile_for_host(out: Path, extra: Sequence[str] = ()) -> None:
    """The same kernels for this CPU, thread by thread (`emulate.hpp`): slow, and for tests only."""
    flags = ["-O1", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC"]
    sources = [*(FOLDER / name for name in SOURCES), *sorted(FOLDER.glob("*.hpp"))]
    command = [*flags, *extra, "-x", "c++", *(str(FOLDER / name) for name in COMPILED)]
    shutil.copyfile(compiled("emulated", sources, command), out)
