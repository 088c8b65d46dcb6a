"""What the forward passes and the beam search do beside products and attention, and its slow twin in torch.

`genrec.engine.cuda.fused` does each of these in one launch.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.engine.cuda import beams
from genrec.engine.cuda.beams import DeviceBeams, DeviceTree

Norms = tuple[Tensor, Tensor] | None  # weights [D] of q's and k's heads, where a model has them
Tables = tuple[Tensor, Tensor]  # cosines and sines [B or 1, X or 1, 1, D/2] in the model's type


class Operations(Protocol):
    """On contiguous tensors of one device and type, if nothing else is said."""

    def heads(
        self, product: Tensor, norms: Norms, eps: float, tables: Tables, k: Tensor, v: Tensor
    ) -> Tensor:
        """product [B, X, (H + 2G) D] -> q [B, X, H, D]; fills k and v, views [B, X, G, D] of where they are read.

        The heads of q and k are normed, where there are `norms`, and rotated. H or G may be 0.
        """

    def inherit(self, own: Tensor, parents: Tensor, room: Tensor) -> None:
        """Fills room [..., :-1, :, :] of [P, B, W, U + 1, G, D] with the parents' of own [P, B, W', U, G, D].

        parents int64 [B, W]. A second buffer is cheaper on a GPU than the in-place order of xGR, section 5.1.
        """

    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + y (x where there is no y), and its RMS norm times `weight`: all [..., n]. The sum may lie in x."""

    def swiglu(self, x: Tensor) -> Tensor:
        """[..., 2I], gate before up, -> silu(gate) * up [..., I]."""

    def expand(
        self, tree: DeviceTree, level: int, logits: Tensor, before: DeviceBeams, width: int, blocked: Tensor | None
    ) -> DeviceBeams:  # fmt: skip
        """See `genrec.engine.cuda.beams.expand`."""


class TorchOperations:
    """See `Operations`: torch, launch by launch."""

    def heads(
        self, product: Tensor, norms: Norms, eps: float, tables: Tables, k: Tensor, v: Tensor
    ) -> Tensor:
        """See `Operations.heads`."""
        heads, kv_heads = product.unflatten(-1, (-1, k.shape[-1])), k.shape[2]
        q, keys, values = heads.split((heads.shape[2] - 2 * kv_heads, kv_heads, kv_heads), dim=2)
        if norms:
            q, keys = (_normed(x, w, eps) for x, w in zip((q, keys), norms, strict=True))
        k.copy_(_rotated(keys, *tables))
        v.copy_(values)
        return _rotated(q, *tables)

    def inherit(self, own: Tensor, parents: Tensor, room: Tensor) -> None:
        """See `Operations.inherit`."""
        requests = torch.arange(len(parents), device=parents.device)[:, None]
        room[:, :, :, :-1] = own[:, requests, parents]

    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Operations.add_norm`."""
        x = x if y is None else x + y
        return x, _normed(x, weight, eps)

    def swiglu(self, x: Tensor) -> Tensor:
        """See `Operations.swiglu`."""
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    def expand(
        self, tree: DeviceTree, level: int, logits: Tensor, before: DeviceBeams, width: int, blocked: Tensor | None
    ) -> DeviceBeams:  # fmt: skip
        """See `Operations.expand`."""
        return beams.expand(tree, level, logits, before, width, blocked)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on x [..., D] with tables [..., D/2] that broadcast to it; half-split layout."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
