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

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, X, hidden] -> q [B, X, H, D], k, v [B, X, G, D], q and k rotated; tables [B or 1, X or 1, 1, D/2]."""
        c = self.config
        heads = F.linear(self.norm(x, self.norms[0]), self.qkv, self.qkv_bias).unflatten(-1, (-1, c.head_dim))
        q, k, v = heads.split((c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads), dim=-2)
        if self.qk_norms:
            q, k = self.norm(q, self.qk_norms[0]), self.norm(k, self.qk_norms[1])
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

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

    @torch.no_grad()
    def prefill(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """tokens [B, S] padded right, lengths [B] -> logits float32 [B, 1, T_1], per layer k, v [B, G, S, D]."""
        positions = torch.arange(tokens.shape[1], device=self.device)
        cos, sin = self._tables(positions[None, :])
        x, kv = F.embedding(tokens, self.embedding), []
        for layer in self.layers:
            q, k, v = layer.project(x, cos, sin)
            k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True, enable_gqa=True
            )
            x = layer.finish(x, attended.transpose(1, 2))
            kv += [k, v]
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, x.shape[-1])
        return self._logits(x.gather(1, last), 1), kv

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
        return self._logits(x, level)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, X] -> cosine and sine [B, X, 1, D/2] in the model's type."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.unsqueeze(-2).to(self.dtype), sin.unsqueeze(-2).to(self.dtype)

    def _logits(self, x: Tensor, level: int) -> Tensor:
        """Hidden [..., hidden] -> float32 [..., T_level]: one level's block of the head only."""
        start = self.config.code_offsets[level - 1]
        block = self.head[start : start + self.config.codebook_sizes[level - 1]]
        normed = F.rms_norm(x, (x.shape[-1],), self.norm, self.config.rms_norm_eps)
        return F.linear(normed, block).float()
