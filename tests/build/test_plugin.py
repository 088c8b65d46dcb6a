"""The plugin around the kernel: what can be checked of it without TensorRT."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from build.plugin import compile as plugin
from build.plugin.oracle import xattention as oracle
from genrec.engine import abi
from genrec.errors import ArtifactError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the plugin is not compiled")
STUB = Path(__file__).parent / "tensorrt_stub"
SYSTEM = (Path("/usr/include"), Path("/usr/include/x86_64-linux-gnu"))


def test_python_repeats_the_header():
    """The C ABI is declared in xattention.h, and once more in `genrec.engine.abi`."""
    header = (plugin.FOLDER / "xattention.h").read_text()
    (fields,) = re.findall(r"typedef struct \{\s*int ([\w, ]+);\s*\} XAttentionShape;", header)
    assert tuple(fields.split(", ")) == abi.Shape.NAMES
    kinds = re.findall(r"XATTENTION_(\w+) = (\d)", header)
    assert {name.lower(): int(number) for name, number in kinds} == abi.TYPES
    (arguments,) = re.findall(r"int xattention\(([^)]*)\)", header)
    assert arguments.count("*") == 1 + abi.TENSORS + 1  # the shape before, the stream behind


@pytest.mark.parametrize(
    ("name", "repeated"),
    [
        ("FusedHeads", abi.Heads),
        ("FusedRows", abi.Rows),
        ("FusedExpand", abi.Expand),
        ("FusedBeams", abi.Beams),
    ],
)
def test_python_repeats_the_header_of_the_fused_kernels(name, repeated):
    (fields,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", (plugin.FOLDER / "fused.h").read_text())
    assert re.findall(r"(\w+)[,;]", fields) == list(repeated.NAMES)


def test_python_repeats_the_functions_of_the_fused_kernels():
    found = re.findall(r"int (fused_\w+)\(const (\w+)\*([^)]*)\)", (plugin.FOLDER / "fused.h").read_text())
    assert {name: (shape, rest.count(",")) for name, shape, rest in found} == {
        name: (f"Fused{shape.__name__}", len(rest)) for name, (shape, rest) in abi.FUSED.items()
    }


def test_a_library_that_is_none_is_an_error_that_says_so(tmp_path):
    (tmp_path / "xattention.so").write_bytes(b"no library")
    with pytest.raises(ArtifactError, match=r"xattention\.so.*cannot be loaded"):
        abi.load(tmp_path / "xattention.so")


@needs_gxx
def test_a_library_from_before_a_function_was_there_is_told(tmp_path):
    plugin.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(tmp_path / "old.so")])
    with pytest.raises(ArtifactError, match=r"old\.so.*cannot be loaded.*xattention"):
        abi.load(tmp_path / "old.so")


@needs_nvcc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_says_whether_it_builds_the_plugin(tmp_path):
    command = ["cmake", "-S", str(plugin.FOLDER), "-B", str(tmp_path), "-DCMAKE_CUDA_ARCHITECTURES=90a"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    have = any((place / "NvInfer.h").exists() for place in SYSTEM)
    assert ("TensorRT plugin: with" if have else "TensorRT plugin: SKIPPED") in told


def headers():
    """The folder of TensorRT's own headers, where there is one."""
    places = (Path(os.environ.get("TENSORRT_ROOT", "/usr/local/tensorrt"), "include"), *SYSTEM)
    return next((place for place in places if (place / "NvInfer.h").exists()), None)


@needs_gxx
@pytest.mark.skipif(headers() is None, reason="no TensorRT headers; TENSORRT_ROOT says where")
def test_the_plugin_compiles_with_tensorrt_s_own_headers():
    """A CUDA toolkit may lack beside them: what plugin.cpp calls of it is in the stub."""
    plugin.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-w", f"-I{headers()}", f"-I{STUB}",
         str(plugin.FOLDER / "plugin.cpp")]
    )  # fmt: skip


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """The plugin over the emulated kernel, and what calls it as TensorRT would."""
    folder = tmp_path_factory.mktemp("plugin")
    flags = ["-O1", "-std=c++17", "-Wall", "-Werror", "-fPIC", f"-I{STUB}"]
    plugin.run(
        ["g++", *flags, "-shared", "-DXATTENTION_ONLY=16", str(plugin.FOLDER / "plugin.cpp"),
         str(STUB / "caller.cpp"), "-x", "c++", str(plugin.FOLDER / "xattention.cu"),
         "-o", str(folder / "plugin.so")]
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "plugin.so")).plugin_attend


@needs_gxx
@pytest.mark.parametrize(
    ("dtype", "code", "span"), [(np.float32, 0, 40), (np.float16, 1, 40), (np.float16, 1, 700)]
)
def test_the_plugin_computes_what_the_kernel_does(called, dtype, code, span):
    """Against the float64 oracle; the longer prompt is split, over a workspace that another layer left dirty."""
    draw = np.random.default_rng(0)
    shared, own = (2, 2, span, 16), (2, 5, 2, 2, 16)
    shapes = [(2, 5, 4, 16), shared, shared, own, own]
    inputs = [draw.standard_normal(shape).astype(dtype) for shape in shapes]
    lengths, out = np.array([span, span // 3]), np.full(shapes[0], np.nan, dtype)
    dims = [(ctypes.c_int64 * len(s))(*s) for s in (shapes[0], shared, own, (2,))]
    pointers = (ctypes.c_void_p * 6)(*(x.ctypes.data for x in (*inputs, lengths)))
    assert called(*dims, code, pointers, ctypes.c_void_p(out.ctypes.data)) == 0
    want = oracle(*(x.astype(np.float64) for x in inputs), lengths)
    assert np.linalg.norm(out - want) < (1e-5 if dtype == np.float32 else 2e-3) * np.linalg.norm(want)
