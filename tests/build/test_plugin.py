"""The plugin around the kernel: what can be checked of it without TensorRT."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from build.plugin import compile as plugin
from build.plugin.oracle import xattention as oracle
from genrec.engine import abi
from genrec.engine.cuda.discriminant import candidate_attention
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
    attend = ctypes.CDLL(str(folder / "plugin.so")).plugin_attend

    def call(name, inputs, out):
        dims = [size for each in inputs for size in each.shape]
        ranks, whole = [each.ndim for each in inputs], [each.dtype == np.int64 for each in inputs]
        count, kind = len(inputs), abi.TYPES[{np.float32: "f32", np.float16: "f16"}[out.dtype.type]]
        return attend(
            name.encode(), count, (ctypes.c_int64 * len(dims))(*dims), (ctypes.c_int * count)(*ranks),
            (ctypes.c_bool * count)(*whole), kind, (ctypes.c_void_p * count)(*(x.ctypes.data for x in inputs)),
            ctypes.c_void_p(out.ctypes.data),
        )  # fmt: skip

    return call


CASES = [(np.float32, 40), (np.float16, 40), (np.float16, 700)]  # the longest is split


def near(out, want):
    return np.linalg.norm(out - want) < (1e-5 if out.dtype == np.float32 else 2e-3) * np.linalg.norm(want)


@needs_gxx
@pytest.mark.parametrize(("dtype", "span"), CASES)
def test_the_plugin_computes_what_the_kernel_does(called, dtype, span):
    """Against the float64 oracle, over a workspace that another layer left dirty."""
    draw = np.random.default_rng(0)
    shared, own = (2, 2, span, 16), (2, 5, 2, 2, 16)
    shapes = [(2, 5, 4, 16), shared, shared, own, own]
    inputs = [draw.standard_normal(shape).astype(dtype) for shape in shapes]
    lengths, out = np.array([span, span // 3]), np.full(shapes[0], np.nan, dtype)
    assert called("XAttention", [*inputs, lengths], out) == 0
    assert near(out, oracle(*(x.astype(np.float64) for x in inputs), lengths))


@needs_gxx
@pytest.mark.parametrize(("dtype", "span"), CASES)
def test_the_plugin_of_rankings_computes_what_torch_does(called, dtype, span):
    """Items in an order of their own, each of them some candidate's."""
    draw = np.random.default_rng(1)
    user, items, of_q = (2, 2, span, 16), (9, 3, 2, 16), (2, 5, 4, 16)
    q, *kv, own_q = (
        draw.standard_normal(shape).astype(dtype) for shape in (of_q, user, user, items, items, of_q)
    )
    lengths, rows = np.array([span, span // 3]), draw.integers(0, 9, (2, 5))
    out = np.full(of_q, np.nan, dtype)
    assert called("CandidateAttention", [q, *kv, lengths, own_q, rows], out) == 0
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (q, *kv, own_q)]
    lengths, rows = torch.from_numpy(lengths), torch.from_numpy(rows)
    assert near(out, candidate_attention(*wide[:-1], lengths, wide[-1], rows).numpy())
