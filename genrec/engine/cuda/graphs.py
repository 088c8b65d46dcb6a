"""Work of a device captured as a CUDA graph (xGR, section 7): one launch, and nothing waits between its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

STEPS = 4  # sizes per doubling: at most a quarter is padding
WARM_UPS = 3  # runs before a capture, so that libraries have chosen and allocated what they need
T = TypeVar("T")


def padded(count: int, multiple: int) -> int:
    """The size that `count` is padded to, where shapes are to be few: one of STEPS per doubling, whole multiples."""
    step = max((1 << (count - 1).bit_length()) // (2 * STEPS), multiple)
    return -(-count // step) * step


def graph_pool(device: torch.device) -> Any:
    """Memory that graphs share which never run at once; of a CPU none.

    Torch refuses a capture into a pool whose graphs are all gone: those that come then need another one.
    """
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Replayed(Generic[T]):
    """Work on tensors that stay where they are, with its results always in the same places; on a CPU done anew."""

    def __init__(self, work: Callable[[], T], device: torch.device, pool: Any) -> None:
        """`pool` as `graph_pool` gives it."""
        self._work: Callable[[], T] | None = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cpu":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread may let go of a retired catalogue's graphs meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result = work()
        # What it is a part of can go with its last reference now: found by the garbage collector instead, a graph could
        # be freed in the middle of another capture, and until then its memory would stay.
        self._work = None

    def __call__(self) -> T:
        """What the work gives; valid until the next call of any graph of the pool."""
        if self._work:
            return self._work()
        assert self._graph
        self._graph.replay()
        return self._result
