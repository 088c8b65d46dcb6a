"""The plugin around the kernel: what can be checked of it without TensorRT."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from build.plugin import compile as plugin
from genrec.engine import abi
from genrec.errors import ArtifactError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


def test_python_repeats_the_header():
    """The C ABI is declared in xattention.h, and once more in `genrec.engine.abi`."""
    header = (plugin.FOLDER / "xattention.h").read_text()
    (fields,) = re.findall(r"typedef struct \{\s*int ([\w, ]+);\s*\} XAttentionShape;", header)
    assert tuple(fields.split(", ")) == abi.Shape.NAMES
    kinds = re.findall(r"XATTENTION_(\w+) = (\d)", header)
    assert {name.lower(): int(number) for name, number in kinds} == abi.TYPES
    (arguments,) = re.findall(r"int xattention\(([^)]*)\)", header)
    assert arguments.count("*") == 1 + abi.TENSORS + 1  # the shape before, the stream behind


def test_a_library_that_is_none_is_an_error_that_says_so(tmp_path):
    (tmp_path / "xattention.so").write_bytes(b"no library")
    with pytest.raises(ArtifactError, match=r"xattention\.so.*cannot be loaded"):
        abi.load(tmp_path / "xattention.so")


@needs_nvcc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_says_whether_it_builds_the_plugin(tmp_path):
    command = ["cmake", "-S", str(plugin.FOLDER), "-B", str(tmp_path), "-DCMAKE_CUDA_ARCHITECTURES=90"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    have = any(Path(p, "NvInfer.h").exists() for p in ("/usr/include", "/usr/include/x86_64-linux-gnu"))
    assert ("TensorRT plugin: with" if have else "TensorRT plugin: SKIPPED") in told
