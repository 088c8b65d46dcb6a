"""Time on a device, and its two ceilings. On a CPU (a dry run) everything runs, and no time means anything."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Work = Callable[[], object]
WARM_UP_S = 0.1  # a device that was idle has lowered its clocks
# Of dense bf16 products, operations per second, as the makers' data sheets have it; the first name that fits.
DATA_SHEET = {
    "H100 PCIe": 756e12,
    "NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}


class Missing(Exception):
    """Something that a part needs and that this machine lacks."""


def data_sheet_peak(name: str) -> float | None:
    """Operations per second of a device by its name; None of one that is not listed."""
    return next((peak for part, peak in DATA_SHEET.items() if part in name), None)


def graphed(work: Work, device: torch.device) -> Work:
    """`work` captured in a CUDA graph, so that launch gaps are not in its time; itself on a CPU.

    A capture fails where work waits for the device, so this also checks that nothing does.
    """
    if device.type == "cpu":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def median_ms(work: Work, device: torch.device, repeats: int = 30) -> float:
    """Median time of `work` by device events, after warm-up; by the host's clock on a CPU."""
    if device.type == "cpu":
        return statistics.median(_host_ms(work, device) for _ in range(2))
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        work()
        torch.cuda.synchronize()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for begin, end in pairs:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs)


def median_wall_ms(work: Work, device: torch.device) -> float:
    """Median time of `work` by the host's clock, the device idle before and after: what a caller waits."""
    for _ in range(3):
        work()
    return statistics.median(_host_ms(work, device) for _ in range(2 if device.type == "cpu" else 20))


def _host_ms(work: Work, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def bytes_per_second(device: torch.device) -> float:
    """Bytes read plus bytes written by a large copy, per second: the ceiling of moving."""
    size = 1 << 32 if device.type == "cuda" else 1 << 20
    source = torch.empty(size, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    return 2e3 * size / median_ms(lambda: target.copy_(source), device, 10)


def operations_per_second(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> float:
    """Floating-point operations of a large matrix product on random data, per second."""
    size = 8192 if device.type == "cuda" else 64
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2e3 * size**3 / median_ms(lambda: a @ b, device, 10)
