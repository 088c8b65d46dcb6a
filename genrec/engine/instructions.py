"""Instruction sets that our operations are compiled for, and which of them this CPU has."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

from genrec.artifact import engines_folder
from genrec.errors import ArtifactError
from genrec.kv.layout import KV_TYPES
from genrec.words import command

AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
TILES = frozenset({"amx_tile", "amx_bf16"})
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18  # of Linux on x86-64
AVX512_BF16 = AVX512 | {"avx512_bf16", "avx512vbmi"}


class InstructionSet(NamedTuple):
    """What a library of operations is compiled for; `build/plugin/openvino/set_<name>.hpp` is its source."""

    name: str
    kv_type: str  # of values: `f32` or `bf16`
    needs: frozenset[str]  # features of a CPU, as Linux names them

    @property
    def library(self) -> str:
        """The file in an engine's folder."""
        return f"operations_{self.name}.so"


# Of each type, the fastest first. None is for bf16 and AVX2: there OpenVINO makes graphs of bf16 to f32.
SETS = (
    InstructionSet("amx_bf16", "bf16", AVX512_BF16 | TILES),
    InstructionSet("avx512_bf16", "bf16", AVX512_BF16),
    InstructionSet("avx512_rounded_bf16", "bf16", AVX512),
    InstructionSet("avx512_f32", "f32", AVX512),
    InstructionSet("avx2_f32", "f32", AVX2),
)


@cache
def features() -> frozenset[str]:
    """Of this CPU, as Linux names them; tiles only where a process may use them."""
    found = frozenset(Path("/proc/cpuinfo").read_text().split())
    return found - TILES if TILES & found and not _tiles_are_granted() else found


def _tiles_are_granted() -> bool:
    """Linux grants them to a process that asks; a sandbox may deny that, and the first one would end the process."""
    asked = (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA)
    return ctypes.CDLL(None).syscall(*map(ctypes.c_long, asked)) == 0


def sets_of(kv_type: str) -> list[InstructionSet]:
    """All for values of `kv_type`, the fastest first."""
    return [each for each in SETS if each.kv_type == kv_type]


def runs_here(each: InstructionSet) -> bool:
    """Whether this CPU has it."""
    return each.needs <= features()


def own_type() -> str:
    """What this CPU computes in fastest: `bf16` where our operations have products of it, else `f32`."""
    return "bf16" if features() >= AVX512_BF16 else "f32"


def engine_of(artifact: Path, target: str) -> Path:
    """The folder of the target's engines, of those by type (`engines/openvino/f32`) the best that runs on this CPU.

    Raises ArtifactError when there are none, and when there are some, for other CPUs.
    """
    root = engines_folder(artifact, target)
    types = sorted(KV_TYPES, key=lambda each: each != own_type())
    found = [root / each for each in types if (root / each).is_dir()]
    if not found:
        if not (root / "engine.json").is_file():
            made = command("build", artifact, f"--target {target}")
            raise ArtifactError(root, f"has no engine; {made} makes it")
        return root
    refused: list[ArtifactError] = []
    for folder in found:
        try:
            chosen(folder, folder.name)
        except ArtifactError as error:
            refused.append(error)
        else:
            return folder
    raise refused[0]


def chosen(folder: Path, kv_type: str) -> InstructionSet | None:
    """Of the sets that an engine was compiled for, the fastest that this CPU has; None where there is no library.

    Raises ArtifactError when there are some, for other CPUs.
    """
    built = [each for each in sets_of(kv_type) if (folder / each.library).is_file()]
    found = next(filter(runs_here, built), None)
    if built and found is None:
        names = ", ".join(each.name for each in built)
        raise ArtifactError(
            folder, f"has operations for CPUs with {names}: `genrec build` it on a machine like this one"
        )
    return found
