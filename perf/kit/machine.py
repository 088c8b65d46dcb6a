"""The machine a figure was measured on, and how fast it could have been: GEMM rate and memory bandwidth.

Every benchmark states `facts()`; those that can say how far from the limit they are print `roofline()` beside their
figures: operations over the measured GEMM rate, bytes over the measured bandwidth.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from genrec.cores import core_limit, usable_cores
from perf.kit.turns import repeated

# CPU features that decide which arithmetic an engine picks.
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
# Of these the first that a CPU's name and its features hold; both are in the name of the machine.
MAKES = ("xeon", "epyc", "ryzen", "core", "intel", "amd", "neoverse", "graviton")
FAMILIES = {"amx_bf16": "amx", "avx512_bf16": "avx512bf16", "avx512f": "avx512", "avx2": "avx2"}
# Of CPUs with the features of others that multiply half as fast: make, and number of the family.
GENERATIONS = {("epyc", "26"): "zen5"}
HERE = Path(__file__).resolve().parent
NO_SOURCE = (":(top,exclude)results", ":(top,exclude)docs", ":(top,exclude)*.md")
PACKAGES = ("nvidia-pytriton", "tritonclient", "openvino", "numpy", "numba", "pyarrow")
EMBEDDED_TRITON = {"0.7.0": "2.51.0"}  # release inside an nvidia-pytriton wheel
GEMM_SIZE = 1024
BUFFER_BYTES = 256 << 20  # several times any last-level cache of a small machine


@dataclass(frozen=True)
class Roofline:
    """1e9 operations/s (a multiply-add is two) and 1e9 bytes/s; bf16 is None where the CPU has none."""

    gemm_fp32_gflops: float
    gemm_openvino_fp32_gflops: float | None
    gemm_openvino_bf16_gflops: float | None
    read_gb_s: float
    copy_gb_s: float  # bytes read plus bytes written
    threads: int

    def seconds(self, operations: float, bytes_read: float, bf16: bool = False) -> float:
        """The least time for the work: the slower of computing and reading."""
        rate = max(self.gemm_fp32_gflops, self.gemm_openvino_fp32_gflops or 0.0)
        if bf16 and self.gemm_openvino_bf16_gflops:
            rate = self.gemm_openvino_bf16_gflops
        return max(operations / (rate * 1e9), bytes_read / (self.read_gb_s * 1e9))


def facts() -> dict[str, Any]:
    """CPU, memory, kernel, versions, commit. Nothing that names the machine or a person."""
    flags = _cpu_field("flags").split()
    return {
        "name": name(),
        "cpu": _cpu_field("model name"),
        # Clouds give several generations of a CPU one name.
        "cpu_family": _cpu_field("cpu family"),
        "cpu_model": _cpu_field("model"),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "triton": EMBEDDED_TRITON.get(_version("nvidia-pytriton") or "", "unknown"),
        "commit": commit(),
    }


def name() -> str:
    """What results of machines like this one are kept under, as `xeon-amx-2`: make, arithmetic or generation, cores."""
    words = re.findall(r"[a-z]+", _cpu_field("model name").lower())
    flags = _cpu_field("flags").split()
    make = next((word for word in MAKES if word in words), platform.machine() or "cpu")
    width = next((short for flag, short in FAMILIES.items() if flag in flags), "plain")
    kind = GENERATIONS.get((make, _cpu_field("cpu family")), width)
    return f"{make}-{kind}-{usable_cores()}"


def commit(folder: Path = HERE) -> str:
    """Short hash of the source, with `-dirty` when it differs; docs and results may. 'unknown' outside a checkout."""
    here: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True}
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, **here).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    differs = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ":/", *NO_SOURCE], check=False, **here)
    return found + ("-dirty" if differs.returncode else "")


def has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself."""
    flags = _cpu_field("flags").split()
    return "amx_bf16" in flags or "avx512_bf16" in flags


def memory_limit() -> int:
    """Bytes: half of what the machine has left. Beyond it a process is ended before the kernel ends somebody."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) // 2 for line in lines if line.startswith("MemAvailable:"))


def roofline(repeats: int = 5) -> Roofline:
    """Measure, about two seconds: the best of `repeats`, since whatever else runs can only slow it down."""
    read, copy = bandwidth(repeats)
    return Roofline(
        numpy_gemm(repeats),
        openvino_gemm("f32", repeats),
        openvino_gemm("bf16", repeats) if has_bf16() else None,
        read,
        copy,
        usable_cores(),
    )


def numpy_gemm(repeats: int, size: int = GEMM_SIZE) -> float:
    """GFLOP/s of float32 [n, n] @ [n, n] in NumPy's BLAS."""
    a, b = np.ones((2, size, size), np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / _best(lambda: np.matmul(a, b, out=out), repeats) / 1e9


def openvino_gemm(precision: str, repeats: int, size: int = GEMM_SIZE) -> float | None:
    """GFLOP/s of [n, n] @ [n, n] constant in OpenVINO at `precision` (f32, bf16); None without OpenVINO."""
    try:
        import openvino as ov
        from openvino import opset13 as ops
    except ImportError:
        return None
    x = ops.parameter([size, size], np.float32)
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    # A cheap end: what is measured must not be the copy of the result.
    product = ops.reduce_max(ops.matmul(x, ops.constant(weights), False, False), ops.constant([0, 1]), False)
    hints = {
        "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": core_limit(),
    }  # fmt: skip
    request = ov.Core().compile_model(ov.Model([product], [x], "gemm"), "CPU", hints).create_infer_request()
    request.set_input_tensor(0, ov.Tensor(weights))  # a copy of its own: requests hold no arrays
    return 2 * size**3 / _best(request.infer, repeats) / 1e9


def bandwidth(repeats: int, size: int = BUFFER_BYTES) -> tuple[float, float]:
    """(read, copy) in GB/s over a buffer of `size` bytes, one thread per usable core."""
    threads = usable_cores()
    source = np.ones(size // 8, np.float64)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:  # max and copyto release the GIL
        read = _best(lambda: list(pool.map(lambda part: part[0].max(), parts)), repeats)
        copy = _best(lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts)), repeats)
    return source.nbytes / read / 1e9, 2 * source.nbytes / copy / 1e9


def _best(work: Callable[[], object], repeats: int) -> float:
    """The fastest call: whatever else runs can only slow it down."""
    return min(repeated(work, repeats))


def _cpu_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), ""
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
