"""The fused kernels of `build/plugin` on torch tensors, one launch for each of `Operations`, through their C ABI."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from genrec.engine import abi
from genrec.engine.cuda.beams import DeviceBeams, DeviceTree
from genrec.engine.cuda.kernel import NAMES
from genrec.engine.cuda.operations import Norms, Tables


class FusedOperations:
    """See `Operations`. Launches can be captured in a CUDA graph; calls on one object must be in one stream."""

    def __init__(self, library: Path, device: torch.device) -> None:
        self._library, self._device = abi.load(library), device
        self._counters: dict[int, Tensor] = {}  # by batch; at 0, as every launch leaves them

    def heads(
        self, product: Tensor, norms: Norms, eps: float, tables: Tables, k: Tensor, v: Tensor
    ) -> Tensor:
        """See `Operations.heads`."""
        (batch, positions, columns), (_, _, kv_heads, size) = product.shape, k.shape
        heads = columns // size - 2 * kv_heads
        if k.stride() != v.stride() or (kv_heads and k.stride(3) != 1):
            raise ValueError(
                "k and v must have the same strides, and the elements of a head beside each other"
            )
        _contiguous(product, *tables, *(norms or ()))
        q = product.new_empty(batch, positions, heads, size)
        table = [
            n if many > 1 else 0 for n, many in zip(tables[0].stride()[:2], tables[0].shape, strict=False)
        ]
        shape = abi.Heads(batch, positions, heads, kv_heads, size, _type(product), *table, *k.stride()[:3])
        given = (product, *(norms or (None, None)), *tables, q, k, v)
        self._call("fused_heads", shape, *map(_address, given), eps)
        return q

    def inherit(self, own: Tensor, parents: Tensor, room: Tensor) -> None:
        """See `Operations.inherit`."""
        _contiguous(own, parents, room)
        planes, batch, before, earlier, heads, size = own.shape
        token = heads * size
        shape = abi.Inherit(planes, batch, before, parents.shape[1], earlier * token, token, _type(own))
        self._call("fused_inherit", shape, *map(_address, (own, parents, room)))

    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Operations.add_norm`; the sum lies in x."""
        _contiguous(x, weight, *(() if y is None else (y,)))
        out, size = torch.empty_like(x), x.shape[-1]
        shape = abi.Rows(x.numel() // size, size, _type(x))
        self._call("fused_add_norm", shape, *map(_address, (x, y, weight, out)), eps)
        return x, out

    def swiglu(self, x: Tensor) -> Tensor:
        """See `Operations.swiglu`."""
        _contiguous(x)
        size = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], size)
        self._call("fused_swiglu", abi.Rows(out.numel() // size, size, _type(x)), _address(x), _address(out))
        return out

    def expand(
        self, tree: DeviceTree, level: int, logits: Tensor, before: DeviceBeams, width: int, blocked: Tensor | None
    ) -> DeviceBeams:  # fmt: skip
        """See `Operations.expand`."""
        pointers, codes, family = tree.pointers[level - 1], tree.codes[level - 1], tree.families[level - 1]
        batch, parents, size = logits.shape
        _contiguous(logits, pointers, codes, *before, *(() if blocked is None else (blocked,)))
        after = DeviceBeams._make(
            (*(x.new_empty(batch, width) for x in before[:4]), before.bad.new_empty(batch))
        )
        if batch not in self._counters:
            self._counters[batch] = torch.zeros(batch, 2, dtype=torch.int32, device=self._device)
        keys = torch.empty(batch, parents * family, dtype=torch.int32, device=self._device)
        shape = abi.Expand(batch, parents, family, size, len(codes), width)
        self._call(
            "fused_expand", shape, *map(_address, (logits, pointers, codes, blocked)),
            *(abi.Beams(*map(_address, each)) for each in (before, after)),
            _address(keys), _address(self._counters[batch]),
        )  # fmt: skip
        return after

    def _call(self, name: str, shape: ctypes.Structure, *given: object) -> None:
        """Launch on the current stream. Raises RuntimeError."""
        stream = torch.cuda.current_stream().cuda_stream if self._device.type == "cuda" else None
        status = getattr(self._library, name)(shape, *given, stream)
        if status:
            sizes = {field: getattr(shape, field) for field, *_ in shape._fields_}
            raise RuntimeError(f"{name} refused {sizes}: {status}")


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _type(x: Tensor) -> int:
    return abi.TYPES[NAMES[x.dtype]]


def _contiguous(*tensors: Tensor) -> None:
    """Raises ValueError where one is not."""
    if not all(x.is_contiguous() for x in tensors):
        raise ValueError("the fused kernels take contiguous tensors")
