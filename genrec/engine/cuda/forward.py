"""The generator's forward passes for a GPU: fused projections, KV written where the attention kernel reads it.

The same arithmetic as `genrec.nn.model` (its slow twin in the tests); nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.models.config import ModelConfig
from genrec.nn.functions import rotary
from genrec.nn.model import Block, Generator, RMSNorm

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on x [..., D] with tables [..., D/2] that broadcast to it; half-split layout."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


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
        self.qk_norms: tuple[Tensor, Tensor] | None = None
        if isinstance(attention.q_norm, RMSNorm) and isinstance(attention.k_norm, RMSNorm):
            self.qk_norms = (attention.q_norm.weight, attention.k_norm.weight)
        self.config = config
        self._queries = config.num_attention_heads * config.head_dim  # rows of `qkv` before those of k

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, X, hidden] -> q [B, X, H, D], k, v [B, X, G, D], q and k rotated; tables [B or 1, X or 1, 1, D/2]."""
        c = self.config
        q, k, v = self._heads(x, slice(None)).split(
            (c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads), dim=-2
        )
        return self._turned(q, 0, cos, sin), self._turned(k, 1, cos, sin), v

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The q of `project` alone."""
        return self._turned(self._heads(x, slice(self._queries)), 0, cos, sin)

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The k and v of `project` alone."""
        k, v = self._heads(x, slice(self._queries, None)).chunk(2, dim=-2)
        return self._turned(k, 1, cos, sin), v

    def _heads(self, x: Tensor, which: slice) -> Tensor:
        """x [B, X, hidden] -> some of the rows of the fused matrix, by heads [B, X, any, D]."""
        bias = None if self.qkv_bias is None else self.qkv_bias[which]
        product = F.linear(self.norm(x, self.norms[0]), self.qkv[which], bias)
        return product.unflatten(-1, (-1, self.config.head_dim))

    def _turned(self, x: Tensor, which: int, cos: Tensor, sin: Tensor) -> Tensor:
        return _rotate(self.norm(x, self.qk_norms[which]) if self.qk_norms else x, cos, sin)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual, output projection, SwiGLU: x [B, X, hidden], attended [B, X, H, D] -> [B, X, hidden]."""
        x = x + F.linear(attended.flatten(-2), self.out)
        gate, up = F.linear(self.norm(x, self.norms[1]), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)


class Forward:
    """Prefill and decode of one generator on one device, in the generator's own type."""

    def __init__(self, generator: Generator, attend: Attend) -> None:
        """`attend` computes the attention of a decode step: the kernel, or `genrec.nn.xattention.xattention`."""
        self.config, self.attend = generator.config, attend
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

        As `Generator.prefill_at`: the last layer makes KV of all positions, all else of the wanted ones.
        """
        positions = torch.arange(x.shape[1], device=self.device)
        cos, sin = self._tables(positions[None, :])
        kv: list[Tensor] = []
        for layer in self.layers[:-1]:
            q, k, v = layer.project(x, cos, sin)
            k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True, enable_gqa=True
            )
            kv += [k, v]
            x = layer.finish(x, attended.transpose(1, 2))
        last = self.layers[-1]
        k, v = last.keys_and_values(x, cos, sin)
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        x = x.gather(1, wanted.unsqueeze(2).expand(-1, -1, x.shape[2]))
        q = last.queries(x, *self._tables(wanted))
        return self._normed(last.finish(x, _attend_at(q, k, v, wanted))), [*kv, k, v]

    @torch.no_grad()
    def decode(self, level: int, codes: Tensor, lengths: Tensor, shared: list[Tensor], own: Tensor) -> Tensor:
        """codes [B, W] of level `level - 1` -> logits float32 [B, W, T_level].

        `shared` as prefill gives it; `own` [2N, B, W, U, G, D] holds the U - 1 earlier tokens' k and v per
        layer; this token's are written behind them.
        """
        x = F.embedding(codes + self.config.code_offsets[level - 2], self.embedding)
        cos, sin = self._tables((lengths + level - 2)[:, None])
        for n, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            own[2 * n][:, :, -1], own[2 * n + 1][:, :, -1] = k, v
            attended = self.attend(
                q.contiguous(), shared[2 * n], shared[2 * n + 1], own[2 * n], own[2 * n + 1], lengths
            )
            x = layer.finish(x, attended)
        return self._logits(self._normed(x), level)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, X] -> cosine and sine [B, X, 1, D/2] in the model's type."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.unsqueeze(-2).to(self.dtype), sin.unsqueeze(-2).to(self.dtype)

    def _logits(self, x: Tensor, level: int) -> Tensor:
        """Normed hidden [..., hidden] -> float32 [..., T_level]: one level's block of the head only."""
        start = self.config.code_offsets[level - 1]
        block = self.head[start : start + self.config.codebook_sizes[level - 1]]
        return F.linear(x, block).float()

    def _normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.norm, self.config.rms_norm_eps)
