"""The attention kernel of `build/plugin` on torch tensors, through its C ABI: no torch extension to build."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from genrec.engine.abi import TYPES, Shape, load

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class XAttentionKernel:
    """Callable as `genrec.nn.xattention.xattention` is, on contiguous tensors of one device (xGR, section 5.2).

    `splits` fixes the number of splits of S; 0 asks the library. Workspaces are kept, so a launch can be captured in a
    CUDA graph. Every launch leaves its counters at 0, so shapes with equally many share one: calls on one object must
    therefore be in one stream.
    """

    def __init__(self, library: Path, device: torch.device, splits: int = 0) -> None:
        self._library = load(library)
        self._device, self._splits = device, splits
        on_gpu = device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
        self._workspaces: dict[tuple[int, int], Tensor] = {}  # by bytes of counters, and of all

    def __call__(
        self,
        q: Tensor,
        shared_k: Tensor,
        shared_v: Tensor,
        unshared_k: Tensor,
        unshared_v: Tensor,
        prompt_length: Tensor,
        own_q: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """q [B, W, H, D], shared [B, G, S, D], unshared [B, W, U, G, D], int64 lengths [B] -> [B, W, H, D].

        With `own_q`, like q, it reads the unshared tokens. With int64 `rows` [B, W] these are rows of unshared
        [M, U, G, D]: see `genrec.engine.cuda.discriminant.candidate_attention`.
        """
        inputs = (q, shared_k, shared_v, unshared_k, unshared_v, prompt_length, own_q, rows)
        given = [x for x in inputs if x is not None]
        if not all(x.is_contiguous() for x in given) or any(
            x.dtype != torch.int64 for x in (prompt_length, rows) if x is not None
        ):
            raise ValueError("xattention takes contiguous tensors, and int64 prompt lengths and rows")
        shape = self._shape(q, shared_k, unshared_k)
        out = torch.empty_like(q)
        stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else None
        pointers = [x if x is None else x.data_ptr() for x in (*inputs, out, self._workspace(shape))]
        status = self._library.xattention(shape, *pointers, stream)
        if status:
            raise RuntimeError(f"xattention refused {tuple(q.shape)} over {tuple(shared_k.shape)}: {status}")
        return out

    def which(self, q: Tensor, shared_k: Tensor, unshared_k: Tensor) -> str:
        """The kernel that a call with such tensors takes on the current device: `wgmma`, `mma` or `rows`."""
        name: bytes = self._library.xattention_kernel(self._shape(q, shared_k, unshared_k))
        return name.decode()

    def _shape(self, q: Tensor, shared_k: Tensor, unshared_k: Tensor) -> Shape:
        (batch, beams, heads, size), kv_heads = q.shape, shared_k.shape[1]
        span, unshared = shared_k.shape[2], unshared_k.shape[-3]
        shape = Shape(batch, beams, heads, kv_heads, size, span, unshared, 1, TYPES[NAMES[q.dtype]])
        shape.splits = self._splits or self._library.xattention_splits(shape, self._processors)
        return shape

    def _workspace(self, shape: Shape) -> Tensor:
        size = 1 << (self._library.xattention_workspace(shape) - 1).bit_length()
        key = self._library.xattention_counters(shape), size
        if key not in self._workspaces:
            self._workspaces[key] = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return self._workspaces[key]
