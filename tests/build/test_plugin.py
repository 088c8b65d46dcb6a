"""The two routes of the kernel into TensorRT: what can be checked of them without TensorRT."""

import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from build.plugin import compile as plugin
from build.plugin.quick import KEYS, ROWS, SIZES, THREADS, entry_point, for_quick_plugins, shared_bytes

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@needs_nvcc
def test_ptx_entry_points_take_inputs_extras_output_and_nothing_else(tmp_path):
    """Six inputs, five int32, one output: what TensorRT's launch of an ahead-of-time quick plugin passes."""
    plugin.compile_ptx(tmp_path / "quick.ptx")
    ptx = (tmp_path / "quick.ptx").read_text()
    found = {
        m[1]: re.findall(r"\.param \.u(\d+)", m[2]) for m in re.finditer(r"\.entry (\w+)\(([^)]*)\)", ptx)
    }
    assert set(found) == {entry_point(kind, size) for kind in ("f16", "bf16") for size in SIZES}
    assert all(kinds == ["64"] * 6 + ["32"] * 5 + ["64"] for kinds in found.values())
    assert ".target sm_90" in ptx


def test_the_launch_is_the_kernels():
    """The numbers that Python repeats are those of the header; 48 KB is what a launch has without asking for more."""
    header = (plugin.FOLDER / "xattention.cuh").read_text()
    assert f"ROWS = 16 * WARPS, KEYS = {KEYS}" in header and "WARPS = 4" in header
    assert (THREADS, ROWS) == (128, 64)
    assert max(shared_bytes(size) for size in SIZES) == 34816 <= 48 * 1024
    with pytest.raises(ValueError, match="no quick kernel"):
        entry_point("f32", 128)


def test_quick_plugins_are_asked_for_by_namespace(tiny):
    model = for_quick_plugins(onnx.load(tiny / "onnx" / "decode_2.onnx"))
    nodes = [n for n in model.graph.node if n.op_type == "XAttention"]
    assert [n.attribute[0].s for n in nodes] == [b"genrec"] * 2


@needs_nvcc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_says_whether_it_builds_the_plugin(tmp_path):
    command = ["cmake", "-S", str(plugin.FOLDER), "-B", str(tmp_path), "-DCMAKE_CUDA_ARCHITECTURES=90"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    have = any(Path(p, "NvInfer.h").exists() for p in ("/usr/include", "/usr/include/x86_64-linux-gnu"))
    assert ("TensorRT plugin: with" if have else "TensorRT plugin: SKIPPED") in told
