"""Our C++ for CPUs reads and writes nothing that is not its own, and does nothing that C++ leaves undefined."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genrec.engine.instructions import features
from tests.build.sets import PARAMS, TILES


def sanitized(what):
    """Run `odd_shapes.py`; what a sanitizer says is the test's message."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    asked = (["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so"))
    found = [
        subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip() for each in asked
    ]
    if not all(Path(each).is_absolute() for each in found):
        pytest.skip("g++ has no libasan")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "TBB_ENABLE_SANITIZERS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.build.odd_shapes", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and done.stdout.endswith("sound\n"), done.stderr[:3000]


@pytest.mark.long
@pytest.mark.parametrize("what", ["hstu", "table"])
def test_training(what):
    sanitized(what)


@pytest.mark.long
@pytest.mark.parametrize("instructions", PARAMS)
def test_operations_of_openvino(instructions):
    if lacks := instructions.needs - features() - TILES:
        pytest.skip(f"{instructions.name}: this CPU lacks {', '.join(sorted(lacks))}")
    sanitized(instructions.name)
