"""The generator's forward passes for a GPU: fused projections, KV written where the attention kernel reads it.

The same arithmetic as `genrec.nn.model` (its slow twin in the tests); nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.engine.cuda.operations import Norms, Operations, Tables, TorchOperations
from genrec.models.config import ModelConfig
from genrec.nn.functions import rotary
from genrec.nn.model import Block, Generator, RMSNorm

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _attend_at(q: Tensor, k: Tensor, v: Tensor, wanted: Tensor) -> Tensor:
    """Attention from positions `wanted` [B, n], q [B, n, H, D], to those up to each: k, v [B, G, S, D] -> [B, n, H, D].

    The heads of a group go beside each other as queries, so that no k or v is repeated for them.
    """
    grouped = q.unflatten(2, (k.shape[1], -1)).permute(0, 2, 3, 1, 4)  # [B, G, R, n, D]
    positions = torch.arange(k.shape[2], device=k.device)
    visible = (positions <= wanted.unsqueeze(2)).repeat(1, grouped.shape[2], 1)  # [B, R * n, S]
    attended = F.scaled_dot_product_attention(grouped.flatten(2, 3), k, v, visible.unsqueeze(1))
    return attended.view(grouped.shape).permute(0, 3, 1, 2, 4).flatten(2, 3)


class _Layer:
    """Weights of one decoder layer, projections that share an input fused into one matrix."""

    def __init__(self, block: Block, config: ModelConfig) -> None:
        attention, mlp = block.self_attn, block.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([part.weight for part in parts])
        biased = config.model_type == "qwen2"
        self.qkv_bias = torch.cat([part.bias for part in parts]) if biased else None
        self.out = attention.o_proj.weight
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight
        self.norms = (block.input_layernorm.weight, block.post_attention_layernorm.weight)
        self.qk_norms: Norms = None
        if isinstance(attention.q_norm, RMSNorm) and isinstance(attention.k_norm, RMSNorm):
            self.qk_norms = (attention.q_norm.weight, attention.k_norm.weight)

    def product(self, normed: Tensor, which: slice = slice(None)) -> Tensor:
        """normed [B, X, hidden] -> q, k and v of all heads [B, X, (H + 2G) D], or of some of the fused rows."""
        bias = None if self.qkv_bias is None else self.qkv_bias[which]
        return F.linear(normed, self.qkv[which], bias)


class Forward:
    """Prefill and decode of one generator on one device, in the generator's own type."""

    def __init__(self, generator: Generator, attend: Attend, operations: Operations | None = None) -> None:
        """`attend` computes the attention of a decode step: the kernel, or `genrec.nn.xattention.xattention`.

        `operations` do what is between products: the fused kernels, or torch where none are given.
        """
        self.config, self.attend = generator.config, attend
        self.operations = operations or TorchOperations()
        with torch.no_grad():
            self.layers = [_Layer(cast(Block, block), generator.config) for block in generator.layers]
        self.embedding = generator.embed_tokens.weight.detach()
        self.norm, self.head = generator.norm.weight.detach(), generator.lm_head.weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.graph_pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    @torch.no_grad()
    def prefill(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """tokens [B, S] padded right, lengths [B] -> logits float32 [B, 1, T_1], per layer k, v [B, G, S, D]."""
        x, kv = self.prefill_at(F.embedding(tokens, self.embedding), lengths[:, None] - 1)
        return self._logits(x, 1), kv

    @torch.no_grad()
    def prefill_at(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Embedded x [B, S, hidden] -> normed hidden [B, n, hidden] at `wanted` [B, n], per layer k, v [B, G, S, D].

        As `Generator.prefill_at`: the last layer makes KV of all positions, all else of the wanted ones. What x holds
        may be lost.
        """
        c, (batch, span, hidden) = self.config, x.shape
        tables = self._tables(torch.arange(span, device=self.device)[None, :])
        room = 2 * len(self.layers), batch, c.num_key_value_heads, span, c.head_dim
        kv = list(x.new_empty(room))
        x, normed = self._first(x)
        for n, layer in enumerate(self.layers[:-1]):
            k, v = kv[2 * n : 2 * n + 2]
            q = self._heads(layer, layer.product(normed), tables, k.transpose(1, 2), v.transpose(1, 2))
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True, enable_gqa=True
            )
            x, normed = self._finish(n, x, attended.transpose(1, 2))
        last, queries, (k, v) = self.layers[-1], c.num_attention_heads * c.head_dim, kv[-2:]
        keys_and_values = last.product(normed, slice(queries, None))
        self._heads(last, keys_and_values, tables, k.transpose(1, 2), v.transpose(1, 2))
        places = wanted.unsqueeze(2).expand(-1, -1, hidden)
        x, normed = x.gather(1, places), normed.gather(1, places)
        none = k.new_empty(*wanted.shape, 0, c.head_dim)
        q = self._heads(last, last.product(normed, slice(queries)), self._tables(wanted), none, none)
        _, normed = self._finish(len(self.layers) - 1, x, _attend_at(q, k, v, wanted))
        return normed, kv

    @torch.no_grad()
    def decode(self, level: int, codes: Tensor, lengths: Tensor, shared: list[Tensor], own: Tensor) -> Tensor:
        """codes [B, W] of level `level - 1` -> logits float32 [B, W, T_level].

        `shared` as prefill gives it; `own` [2N, B, W, U, G, D] holds the U - 1 earlier tokens' k and v per
        layer; this token's are written behind them.
        """
        x, normed = self._first(F.embedding(codes + self.config.code_offsets[level - 2], self.embedding))
        tables = self._tables((lengths + level - 2)[:, None])
        for n, layer in enumerate(self.layers):
            k, v = own[2 * n], own[2 * n + 1]
            q = self._heads(layer, layer.product(normed), tables, k[:, :, -1], v[:, :, -1])
            attended = self.attend(q, shared[2 * n], shared[2 * n + 1], k, v, lengths)
            x, normed = self._finish(n, x, attended)
        return self._logits(normed, level)

    def _first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Embedded x [..., hidden], and what the first layer reads of it."""
        return self.operations.add_norm(x, None, self.layers[0].norms[0], self.config.rms_norm_eps)

    def _heads(self, layer: _Layer, product: Tensor, tables: Tables, k: Tensor, v: Tensor) -> Tensor:
        """See `Operations.heads`."""
        return self.operations.heads(product, layer.qk_norms, self.config.rms_norm_eps, tables, k, v)

    def _finish(self, n: int, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of layer `n`: output projection and SwiGLU, each added to x [B, X, hidden]; attended [B, X, H, D].

        Beside x what the next layer, or the head, reads of it: the norm goes with the residual before it.
        """
        do, layer, eps = self.operations, self.layers[n], self.config.rms_norm_eps
        following = self.layers[n + 1].norms[0] if n + 1 < len(self.layers) else self.norm
        x, normed = do.add_norm(x, F.linear(attended.flatten(-2), layer.out), layer.norms[1], eps)
        inner = do.swiglu(F.linear(normed, layer.gate_up))
        return do.add_norm(x, F.linear(inner, layer.down), following, eps)

    def _tables(self, positions: Tensor) -> Tables:
        """positions [B, X] -> cosine and sine [B, X, 1, D/2] in the model's type."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.unsqueeze(-2).to(self.dtype), sin.unsqueeze(-2).to(self.dtype)

    def _logits(self, x: Tensor, level: int) -> Tensor:
        """Normed hidden [..., hidden] -> float32 [..., T_level]: one level's block of the head only."""
        start = self.config.code_offsets[level - 1]
        block = self.head[start : start + self.config.codebook_sizes[level - 1]]
        return F.linear(x, block).float()
