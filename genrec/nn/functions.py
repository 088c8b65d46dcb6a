"""The functions that models are made of: in torch, and, while torch exports a model to ONNX, one node of its name each.

The nodes are of domain `genrec`; `export/functions.py` has their bodies in ONNX, and `build/` puts operations of a
target in their places by name. A model that is made of these functions needs nothing of its own there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.models.registry import DOMAIN


def exporting() -> bool:
    """Whether torch is exporting to ONNX."""
    return torch.onnx.is_in_onnx_export()


def node(name: str, inputs: Sequence[Tensor], shape: Sequence[int], **attributes: Any) -> Tensor:
    """The node `genrec::<name>`, whose output is of the first input's type."""
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{name}", inputs, attributes, dtype=inputs[0].dtype, shape=shape, version=1
    )


def rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of an embedding: table [V, hidden], ids [...] -> [..., hidden]."""
    if exporting():
        return node("Rows", (table, ids), (*ids.shape, table.shape[1]))
    return F.embedding(ids, table)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis, computed in float32: x [..., n], weight [n] -> [..., n]."""
    if exporting():
        return node("RMSNorm", (x, weight), x.shape, eps=eps)
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] -> [..., N]. The node has its weight as [K, N], and no bias."""
    if exporting():
        product = node("Linear", (x, weight.T), (*x.shape[:-1], weight.shape[0]))
        return product if bias is None else product + bias
    return F.linear(x, weight, bias)


def add_linear(x: Tensor, inner: Tensor, weight: Tensor, drop: nn.Module) -> Tensor:
    """A residual and what a product, of which training drops some, adds to it.

    x [..., N], inner [..., K], weight [N, K] -> [..., N].
    """
    if exporting():
        return node("AddLinear", (x, inner, weight.T), x.shape)
    added: Tensor = drop(F.linear(inner, weight))
    return x + added


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """silu(x gate) * (x up), what a gated MLP computes inside: x [..., K], gate and up [N, K] -> [..., N]."""
    if exporting():
        return node("SwiGLU", (x, gate.T, up.T), (*x.shape[:-1], gate.shape[0]))
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables for `positions` [...]: two tensors [..., D/2] in float32."""
    frequency = theta ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    )
    if exporting():
        shape = (*positions.shape, head_dim // 2)
        cosine, sine = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::Angles", (positions, frequency), dtypes=[torch.float32] * 2, shapes=[shape] * 2, version=1
        )  # fmt: skip
        return cosine, sine
    angle = positions.to(torch.float32).unsqueeze(-1) * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to `x` [..., heads, D] with tables [..., D/2] (half-split layout, as Hugging Face does)."""
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotated_heads(
    x: Tensor, size: int, cos: Tensor, sin: Tensor, weight: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """Heads of x [..., heads * D], each normed where there is a `weight` [D], then rotated: [..., heads, D]."""
    if exporting():
        heads = [x.shape[-1] // size, size]
        shape = [0] * (x.dim() - 1) + heads  # as Reshape reads it: a dimension of 0 stays as it is
        if weight is None:
            return node("Rotate", (x, cos, sin), (*x.shape[:-1], *heads), heads=shape)
        return node("NormRotate", (x, weight, cos, sin), (*x.shape[:-1], *heads), heads=shape, eps=eps)
    split = x.unflatten(-1, (-1, size))
    return rotate(split if weight is None else rms_norm(split, weight, eps), cos, sin)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with heads in Hugging Face's order: q [B, Q, H, D], k, v [B, S, G, D] -> [B, Q, H, D].

    `mask` says what a query sees; without one each sees the positions up to its own.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
    return out.transpose(1, 2)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of a prompt: q [B, S, H, D], k, v [B, S, G, D] -> [B, S, H, D]. The node has k and v as [B, G, S, D]."""
    if exporting():
        return node("CausalAttention", (q, k.transpose(1, 2), v.transpose(1, 2)), q.shape)
    return attend(q, k, v, None)
