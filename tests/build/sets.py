"""Instruction sets for tests of our operations: each runs where the CPU has it, a skip names what the CPU lacks.

What is written for AMX runs on other CPUs too, where they have all else that it needs: tiles are then emulated.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from build.openvino.operations import MACHINES, library
from build.plugin.compile import FOLDER
from genrec.engine.instructions import SETS, InstructionSet, features, runs_here

NUMPY_TYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
TILES = {"amx_tile", "amx_bf16"}
PARAMS = [pytest.param(each, id=each.name) for each in SETS]


def library_of(instructions: InstructionSet, folder: Path) -> Path:
    """The compiled library; skips the test where this CPU cannot run it."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    path, lacks = folder / instructions.library, instructions.needs - features()
    if runs_here(instructions):
        path.write_bytes(library(instructions.name))
    elif lacks <= TILES:
        flags = [flag for flag in MACHINES[instructions.name] if "amx" not in flag]
        flags += ["-include", str(FOLDER / "emulate_tiles.hpp")]
        with patch.dict(MACHINES, {instructions.name: flags}):
            path.write_bytes(library(instructions.name))
    else:
        pytest.skip(f"{instructions.name}: this CPU lacks {', '.join(sorted(lacks))}")
    return path
